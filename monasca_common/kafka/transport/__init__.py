# SPDX-License-Identifier: Apache-2.0
"""The clients of Kafka behind one seam: librdkafka and memory. Only this folder imports confluent_kafka."""
