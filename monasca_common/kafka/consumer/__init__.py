# SPDX-License-Identifier: Apache-2.0
"""Consuming: batches of a group's partitions, and commits that carry their assignment's epoch."""

from monasca_common.kafka.consumer.consumer import ConsumerHealth, KafkaConsumer

__all__ = ["ConsumerHealth", "KafkaConsumer"]
