# SPDX-License-Identifier: Apache-2.0
"""`AsyncProducer`: sends messages from an event loop and reports the outcome of each.

It shares the in-flight table, the clients and the serving thread of a `KafkaProducer`. Only its waits differ: the table
wakes a `LoopWaiter` through the loop's own descriptor. A cancellation is an interrupt: messages of the cancelled call
are *unknown*, the next `flush` or `close` reports them, and a `retry` of that report is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monasca_common.kafka.aio.consumer import call_on
from monasca_common.kafka.errors import DeliveryError, UndeliveredReport
from monasca_common.kafka.message import Headers, Record
from monasca_common.kafka.outgoing import as_list
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.table import Bulk, Waiter, all_over
from monasca_common.kafka.producer.topic_limits import TopicLimit


class LoopWaiter(Waiter):
    """Completes a ``future`` of the running event loop with true once ``is_over()``."""

    __slots__ = ("future",)

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__(is_over)
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        self.is_over = bool  # always false, so that the table calls `set` only once
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            self.future.get_loop().call_soon_threadsafe(self.end, True)

    def end(self, is_over: bool, /) -> None:
        """Complete the future, on the event loop."""
        if not self.future.done():
            self.future.set_result(is_over)


class SentBulk:
    """The messages of consecutive calls of `AsyncProducer.send`: awaiting it returns their `DeliveryReport`.

    All sends to a topic within a few milliseconds share one such object with one future. The report counts the
    delivered messages and lists the others; after ``publish_timeout_seconds``, messages in flight are *unknown*, and
    `AsyncProducer.retry` waits for them. `AsyncProducer.flush` reports the messages too. Cancelling one task that
    awaits it does not affect the others.
    """

    def __init__(self, producer: AsyncProducer, bulk: Bulk) -> None:
        self._producer = producer
        self._bulk = bulk
        self._report: asyncio.Future[DeliveryReport] | None = None

    def __await__(self) -> Generator[Any, Any, DeliveryReport]:
        if self._report is None:
            deadline = self._producer.producer._deadline(None)
            self._report = asyncio.ensure_future(self._producer._report(self._bulk, deadline))
        return asyncio.shield(self._report).__await__()


class AsyncProducer:
    """A producer for the tasks of one event loop, over ``producer``, which other threads may use at the same time.

    Outcomes are never raised as exceptions: sending raises only `MisuseError`, and `send` also raises `QueueFull` if
    there is no room. An asynchronous context manager that closes ``producer``.
    """

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self._table = producer._table
        self._serving = producer._serving
        self._closing = ThreadPoolExecutor(1, "kafka-producer-close")
        self._last_sent: dict[str, SentBulk] = {}

    async def publish(
        self,
        topic: str,
        records: Iterable[bytes | Record],
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timeout: float | None = None,
    ) -> DeliveryReport:
        """Send a bulk and wait for its outcome, like `KafkaProducer.publish`."""
        self.producer._check("publish")
        deadline = self.producer._deadline(timeout)
        bulk = self.producer._bulk(topic, as_list(records), key, headers)
        try:
            await self._deliver(bulk, deadline)
            return await self._report(bulk, deadline)
        except BaseException:
            self._table.interrupt((bulk,))
            raise

    async def retry(self, report: UndeliveredReport, *, timeout: float | None = None) -> DeliveryReport:
        """Deliver the same messages, like `KafkaProducer.retry`. ``report`` may come from any producer."""
        self.producer._check("retry")
        deadline = self.producer._deadline(timeout)
        bulks: list[Bulk] = []
        try:
            old = self.producer._next_attempts(report, bulks)
            for bulk in bulks:
                await self._deliver(bulk, deadline)
            latest = old.latest()
            await self._wait(all_over(latest.values()), deadline)
            return old.with_attempts(latest)
        except BaseException:
            self._table.interrupt(bulks)
            raise

    async def send(self, topic: str, record: bytes | Record, *, key: bytes | None = None) -> SentBulk:
        """Send one message. Wait only for room in the budget, up to ``publish_timeout_seconds``, and raise `QueueFull`
        if there is not enough room. `flush` reports the message; await the result to know its outcome earlier."""
        limit = self.producer._limits.ready.get(topic)
        if limit is not None and type(record) is bytes and (key is None or type(key) is bytes):
            sent, sends = self._last_sent.get(topic), limit.sends
            is_open = sent is not None and sent._bulk.reservation is sends
            if not is_open or limit.transport.send(topic, record, key, sends) is None:
                sent = self._send_first(topic, record, key, limit)
            if sent is not None:
                if self._serving.idle:
                    self._serving.wake()
                return sent
        self.producer._check("send")
        bulk = self.producer._bulk(topic, [record], key, plain=False)
        bulk.attempts[0].for_flush = True
        try:
            refused = await self._deliver(bulk, self.producer._deadline(None))
        except BaseException:
            self._table.interrupt((bulk,))
            raise
        if refused is not None:
            self.producer._check("send")
            raise refused
        if self._serving.idle:
            self._serving.wake()
        return SentBulk(self, bulk)

    async def flush(self, timeout: float | None = None) -> DeliveryReport:
        """Wait up to ``timeout`` seconds for the sends that no flush has reported yet, like `KafkaProducer.flush`. A
        message that was retried has the outcome of its retry. A cancelled flush reports nothing; the next flush reports
        its messages."""
        self.producer._check("flush")
        sends = self._table.unfinished(of_sends=True)
        await self._wait(all_over(sends), self.producer._deadline(timeout))
        report = self.producer._flushed(sends)
        return report.with_attempts(report.latest())

    async def close(self, timeout: float | None = None) -> DeliveryReport:
        """Close the producer on another thread, like `KafkaProducer.close`. A cancellation does not stop the close."""
        return await call_on(self._closing, self.producer.close, timeout)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await call_on(self._closing, self.producer._close_and_log, None)

    def _send_first(self, topic: str, value: bytes, key: bytes | None, limit: TopicLimit) -> SentBulk | None:
        """Send the first message of another bulk; return ``None`` if there is too little room."""
        with self._table.lock:  # the serving thread must not close the reservation before its bulk is found
            given_id = limit.transport.send(topic, value, key, limit.sends)
            if given_id is None and self.producer._open_sends(topic, limit, len(value) + len(key or b"")):
                given_id = limit.transport.send(topic, value, key, limit.sends)
            if given_id is None:
                return None
            bulk = next(bulk for bulk in self._table._open if bulk.reservation is limit.sends)
            sent = self._last_sent[topic] = SentBulk(self, bulk)
            return sent

    async def _deliver(self, bulk: Bulk, deadline: float) -> DeliveryError | None:
        """Hand over a bulk once there is room for it. At the deadline, settle it instead and return the error."""
        table = self._table
        while not table.reserve(bulk) and table.can_have_room(bulk):
            if not await self._wait(lambda: table.has_room(bulk) or not table.can_have_room(bulk), deadline):
                break
        return self.producer._deliver(bulk, 0.0)  # does not wait

    async def _report(self, bulk: Bulk, deadline: float) -> DeliveryReport:
        """Return the report of a bulk once it is settled, or at the deadline."""
        self._table.close_sends()
        await self._wait(bulk.all_over(), deadline)
        return DeliveryReport(self._table.attempts_of(bulk), bulk=bulk)

    async def _wait(self, is_over: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``is_over()`` is true, like `Serving.wait`. Return whether it was true by the deadline."""
        waiter = LoopWaiter(is_over)
        remaining = deadline - self._table.clock.monotonic()
        timer = asyncio.get_running_loop().call_later(remaining, waiter.end, False)
        try:
            self._table.waiters[waiter] = None
            with self._table.lock:
                waiter.over = is_over()
            if not waiter.over and remaining > 0:
                self._serving.wake()
                waiter.over = await waiter.future
            return waiter.over
        finally:
            timer.cancel()
            self._table.waiters.pop(waiter, None)
