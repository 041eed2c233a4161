# SPDX-License-Identifier: Apache-2.0
"""Consuming: batches of a group's partitions, and commits with the epoch of their assignment."""

from monasca_common.kafka.consumer.consumer import ConsumerHealth, KafkaConsumer

__all__ = ["ConsumerHealth", "KafkaConsumer"]
