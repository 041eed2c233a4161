# SPDX-License-Identifier: Apache-2.0
"""The clients of Kafka behind one interface: librdkafka and memory. Only this package imports confluent_kafka."""
