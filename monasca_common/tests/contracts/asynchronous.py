# SPDX-License-Identifier: Apache-2.0
"""The asyncio classes with the methods of the synchronous ones, so that they pass the same contracts."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from monasca_common.kafka.aio import AsyncConsumer, AsyncProducer
from monasca_common.kafka.message import Batch, Record
from monasca_common.kafka.transport.base import message_id
from monasca_common.tests.threads import LoopThread


class _Adapter:
    """Runs coroutine methods on the loop; all other attributes belong to the synchronous class."""

    asynchronous: Callable[[Any], Any]  # the class under test

    def __init__(self, loop: LoopThread, inner: Any) -> None:
        self.loop, self.inner, self.made = loop, inner, self.asynchronous(inner)

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self.made), name, None)
        if asyncio.iscoroutinefunction(method):
            return lambda *arguments, **options: self.loop.run(method(self.made, *arguments, **options))
        return getattr(self.inner, name)

    def __enter__(self) -> Self:
        self.loop.run(self.made.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self.loop.run(self.made.__aexit__(*exception))


class ProducerAdapter(_Adapter):
    asynchronous = AsyncProducer

    def send(self, topic: str, record: bytes | Record, *, key: bytes | None = None) -> bytes | None:
        """Return the message id, which the contract compares."""
        bulk = self.loop.run(self.made.send(topic, record, key=key))._bulk
        if bulk.attempts:
            return next(iter(bulk.attempts.values())).message_id  # type: ignore[no-any-return]
        end = bulk.next if bulk.reservation is None else bulk.reservation.next
        return None if bulk.id_prefix is None else message_id(bulk.id_prefix, end - 1)


class ConsumerAdapter(_Adapter):
    asynchronous = AsyncConsumer

    def poll(self, max_messages: int = 500, timeout: float = 1.0) -> Batch:
        return self.loop.run(self.made.poll(max_messages, timeout))  # type: ignore[no-any-return]
