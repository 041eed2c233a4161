# SPDX-License-Identifier: Apache-2.0
"""Producers, consumers and processors next to confluent-kafka and the old package, and the cost of an audit."""
