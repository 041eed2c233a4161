# SPDX-License-Identifier: Apache-2.0
"""`AsyncConsumer`: reads batches and commits explicit offsets in an event loop.

A rebalance may wait for brokers and for the caller's listener, so the consumer is polled on a separate thread: one
thread polls, seeks, pauses and closes; another thread commits. Both threads end when the object is no longer
referenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar, TypeVarTuple

from monasca_common.kafka.clock import check_seconds
from monasca_common.kafka.consumer.commit import CommitResult
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.message import Batch, OffsetAndEpoch, TopicPartition

_SLICE_SECONDS = 0.2  # duration of a poll on the thread; a close or seek after a cancelled poll waits for that poll

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")
Offsets = dict[TopicPartition, int]


class AsyncConsumer:
    """A consumer for one event loop, over ``consumer``, which no other thread may poll. One task polls and seeks; any
    task may commit.

    ``async for batch in consumer`` polls until a batch has messages or errors. As with threads, poll at least every
    ``max_poll_interval_seconds``: a body that may take longer belongs in an `AsyncProcessor`. The rebalance listener
    runs on the polling thread. An asynchronous context manager that closes ``consumer``.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer
        self._guard = consumer._guard  # a child process does not have the threads
        self._polling = ThreadPoolExecutor(1, "kafka-consumer-poll")
        self._committing = ThreadPoolExecutor(1, "kafka-consumer-commit")
        self._using = asyncio.Lock()  # held by a poll or a seek
        # a poll whose batch was not returned yet; it may belong to an earlier event loop
        self._polled: Future[Batch] | None = None

    async def poll(self, max_messages: int | None = None, timeout: float = 1.0) -> Batch:
        """Return up to ``max_messages`` (default: the option ``batch_size``) once a message is available, or an empty
        batch after ``timeout`` seconds, like `KafkaConsumer.poll`.

        A cancelled poll loses no messages: the next call returns its batch.
        """
        self._guard.check()
        loop = asyncio.get_running_loop()
        most = self.consumer.settings.batch_size if max_messages is None else max_messages
        deadline = loop.time() + check_seconds(timeout)
        async with self._using:
            while True:
                left = max(0.0, deadline - loop.time())
                if self._polled is None:
                    self._polled = self._polling.submit(self.consumer.poll, most, min(left, _SLICE_SECONDS))
                try:
                    batch = await asyncio.shield(asyncio.wrap_future(self._polled))
                except Exception:  # a cancelled poll remains for the next call
                    self._polled = None
                    raise
                self._polled = None
                if batch.partitions or batch.errors or not left:
                    return batch

    async def __aiter__(self) -> AsyncIterator[Batch]:
        while True:
            batch = await self.poll()
            if batch.partitions or batch.errors:
                yield batch

    async def commit(
        self, what: Batch | Mapping[TopicPartition, int | OffsetAndEpoch], timeout: float | None = None
    ) -> Mapping[TopicPartition, CommitResult]:
        """Commit a whole batch, or next offsets, like `KafkaConsumer.commit`. A cancelled commit may still take
        effect."""
        self._guard.check()
        return await call_on(self._committing, self.consumer.commit, what, timeout)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        await self._move(partial(self.consumer.seek, partition, offset), [partition])

    async def seek_to_time(self, times_ms: Mapping[TopicPartition, int]) -> Offsets:
        return await self._move(partial(self.consumer.seek_to_time, times_ms), times_ms)

    async def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> Offsets:
        return await self._move(partial(self.consumer.seek_to_beginning, partitions), partitions)

    async def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> Offsets:
        return await self._move(partial(self.consumer.seek_to_end, partitions), partitions)

    async def seek_to_committed(self, partitions: Collection[TopicPartition] | None = None) -> Offsets:
        return await self._move(partial(self.consumer.seek_to_committed, partitions), partitions)

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`, except those of a cancelled poll."""
        self._guard.check()
        await call_on(self._polling, self.consumer.pause, partitions)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._guard.check()
        await call_on(self._polling, self.consumer.resume, partitions)

    async def close(self, timeout: float | None = None) -> None:
        """Release all partitions and leave the group, like `KafkaConsumer.close`. A cancellation does not stop it."""
        if not self._guard.forked:
            await call_on(self._polling, self.consumer.close, timeout)

    async def __aenter__(self) -> AsyncConsumer:
        self._guard.check()
        try:
            await call_on(self._polling, self.consumer.__enter__)
        except BaseException:  # also a cancellation, after which the consumer opens
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _move(self, seek: Callable[[], Result], partitions: Collection[TopicPartition] | None) -> Result:
        """Seek, and drop the messages of these partitions (all if ``None``) from the batch of a cancelled poll."""
        self._guard.check()
        async with self._using:
            moved = await call_on(self._polling, seek)
            if self._polled is not None and self._polled.exception() is None:  # it ended before the seek began
                batch = self._polled.result()
                parts = () if partitions is None else batch.partitions
                kept = tuple(part for part in parts if part.topic_partition not in (partitions or ()))
                self._polled = Future()
                self._polled.set_result(Batch(kept, batch.errors))
            return moved


async def call_on(thread: ThreadPoolExecutor, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Run a call on the thread. A cancellation ends the wait but not the call, because a later call would overtake
    it."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(thread, call, *args))
