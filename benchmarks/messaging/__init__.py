# SPDX-License-Identifier: Apache-2.0
"""Producers, consumers and processors, beside confluent-kafka and the old package; what an audit costs."""
