# SPDX-License-Identifier: Apache-2.0
"""Producing: everything that happens to a message from `KafkaProducer.publish` or `send` to its outcome."""
