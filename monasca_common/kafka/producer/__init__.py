# SPDX-License-Identifier: Apache-2.0
"""Producing: everything that happens to a message from `KafkaProducer.publish` or `send` to its outcome."""

from monasca_common.kafka.producer.producer import KafkaProducer as KafkaProducer  # its place in version 3
