# SPDX-License-Identifier: Apache-2.0
"""Producers, consumers and processors for asyncio: wrappers of the thread-based classes, with the same guarantees."""

from monasca_common.kafka.aio.consumer import AsyncConsumer
from monasca_common.kafka.aio.processor import AsyncProcessor
from monasca_common.kafka.aio.producer import AsyncProducer, SentBulk

__all__ = ["AsyncConsumer", "AsyncProcessor", "AsyncProducer", "SentBulk"]
