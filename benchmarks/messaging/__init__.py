# SPDX-License-Identifier: Apache-2.0
"""Compares producers, consumers and processors with confluent-kafka and the old package, and measures the cost of the
audit."""
