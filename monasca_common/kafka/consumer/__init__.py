# SPDX-License-Identifier: Apache-2.0
"""Consuming: reads batches from a group's partitions, and commits them with the epoch of their assignment."""

from monasca_common.kafka.consumer.consumer import KafkaConsumer as KafkaConsumer  # its place in version 3
