# SPDX-License-Identifier: Apache-2.0
"""Kafka clients behind one interface: librdkafka and memory. Only this package imports confluent_kafka."""
