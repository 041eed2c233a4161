# SPDX-License-Identifier: Apache-2.0
"""Coroutines over the memory broker, with a limit of real time."""

import asyncio
import functools
import inspect

from oslotest import base

from monasca_common.kafka.aio import AsyncConsumer, AsyncProducer
from monasca_common.kafka.testing import MemoryKafka

GROUP = "test-group"
PARTITIONS = 4
_PATIENCE_SECONDS = 50


class AioCase(base.BaseTestCase):
    """A test that is a coroutine function runs in its own event loop."""

    def __init_subclass__(cls):
        super().__init_subclass__()
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                run = functools.wraps(test)(lambda self, test=test: self.run_loop(test(self)))
                setattr(cls, name, run)

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.broker = self.kafka.broker
        for topic in ("in", "in.dlq", "out"):
            self.broker.create_topic(topic, PARTITIONS)

    def run_loop(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, _PATIENCE_SECONDS))

    def producer(self, **changes):
        return AsyncProducer(self.kafka.producer(**changes))

    def consumer(self, **changes):
        return AsyncConsumer(self.kafka.consumer("in", GROUP, **changes))

    def values(self, topic):
        return [message.value for message in self.broker.records(topic)]

    def committed(self):
        return sum(self.broker.committed(GROUP).values())
