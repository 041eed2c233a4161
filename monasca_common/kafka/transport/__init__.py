# SPDX-License-Identifier: Apache-2.0
"""Kafka clients behind one interface: librdkafka and an in-memory broker. Only this package imports confluent_kafka."""
