# SPDX-License-Identifier: Apache-2.0
"""Producers, consumers and processors compared with confluent-kafka and the old package, and the cost of the audit."""
