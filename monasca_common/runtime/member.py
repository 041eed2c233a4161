# SPDX-License-Identifier: Apache-2.0
"""One member of a consumer group: its clients, its processor, and its restart after a failure."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple

from monasca_common.kafka import (
    Hook,
    KafkaConsumer,
    KafkaProducer,
    Processor,
    RetryPolicy,
    open_consumer,
    open_producer,
)
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS

# Back-off of a handler for an unavailable database: rare enough not to be a load, frequent enough to resume within
# seconds.
DATABASE_RETRY = RetryPolicy(backoff_seconds=0.1, max_backoff_seconds=3.0)


class Tapped(NamedTuple):
    """What a tap adds to an attempt: the settings to open the producer with, and hooks for the processor."""

    producer: ProducerSettings
    hooks: tuple[Hook, ...] = ()


#: Watches what one attempt reads and writes. It is called with the settings of the producer and with the positions at
#: which the member starts, which the member keeps up to date.
Tap = Callable[[ProducerSettings, Mapping[TopicPartition, int]], AbstractContextManager[Tapped]]


class Clients(NamedTuple):
    """The clients of one attempt. ``hooks``: for its processor."""

    consumer: KafkaConsumer
    producer: KafkaProducer
    hooks: tuple[Hook, ...]


class Member(Loop):
    """Reads topics as a member of a consumer group. Create it in the process that runs it, after the fork.

    ``tap``: ``None``: nothing watches it.
    """

    def __init__(
        self,
        name: str,
        consumer: ConsumerSettings,
        producer: ProducerSettings,
        *,
        tap: Tap | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(f"the consumer of {name}", clock)
        self.name = name
        self.consumer: KafkaConsumer | None = None  # while an attempt lasts
        self._processor: Processor | None = None
        self._settings = consumer, producer
        self._tap = tap
        self._failing = threading.Lock()
        self._attempt: ExitStack | None = None  # the latest
        self._failure: Exception | None = None  # of this attempt

    @abstractmethod
    def open(self, stack: ExitStack) -> Processor:
        """Open the processor of one attempt, over `open_clients`. ``stack`` is closed when the attempt ends."""

    def open_clients(self, stack: ExitStack, positions: Mapping[TopicPartition, int] | None = None) -> Clients:
        """The clients of an attempt; ``stack`` closes them."""
        consumer, producer = self._settings
        tapped = Tapped(producer)
        if self._tap is not None:
            tapped = stack.enter_context(self._tap(producer, {} if positions is None else positions))
        opened_producer = open_producer(tapped.producer)
        stack.callback(opened_producer.close, CLOSE_SECONDS)
        opened_consumer = open_consumer(consumer)
        stack.callback(opened_consumer.close, CLOSE_SECONDS)
        return Clients(opened_consumer, opened_producer, tapped.hooks)

    def stop(self) -> None:
        """Finish what is being handled, commit, and leave the group; returns when that is done, in bounded time."""
        super().stop()
        if self._processor is not None:
            self._processor.stop()

    def fail(self, attempt: ExitStack, error: Exception) -> None:
        """End the attempt by ``error``, which neither a retry nor waiting cures. The first of several counts. Raise
        `RetryLater` after it, so that the message stays unhandled.

        ``attempt``: the stack that `open` got. A handler that an earlier attempt has abandoned does not end this one.
        """
        with self._failing:
            if attempt is not self._attempt or self._failure is not None:
                return
            self._failure, processor = error, self._processor
        if processor is not None:
            processor.stop()

    @property
    def turn_seconds(self) -> float | None:
        """How long ago its loop has turned; ``None``: it has none, and waits for its next start."""
        consumer = self.consumer
        return None if consumer is None else consumer.health().seconds_since_poll

    def serve(self) -> None:
        """One attempt, from the opening of its clients to their close."""
        with ExitStack() as stack:
            with self._failing:
                self._attempt, self._failure = stack, None
            processor = self.open(stack)
            self._processor, self.consumer = processor, processor.consumer
            stack.callback(self._forget)
            if not self.stopping.is_set():
                processor.run()
        if self._failure is not None:
            raise self._failure

    def _forget(self) -> None:
        self._processor = self.consumer = None
