# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group: its clients, its processor, and its restarts."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from msgspec import structs

from monasca_common.kafka import (
    Hook,
    KafkaConsumer,
    KafkaProducer,
    MessagingError,
    Processor,
    open_consumer,
    open_producer,
)
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus
from monasca_common.runtime.restarts import Loop
from monasca_common.runtime.shutdown import CLOSE_SECONDS

_PROBE_SECONDS = 5.0
_PROBE_PATIENCE_SECONDS = 2.0

#: A function that observes the messages read and written by one attempt. Arguments: the settings of the producer, and
#: the member's start positions, which the member updates. It yields the settings to use, and a hook for the processor.
Tap = Callable[[ProducerSettings, Mapping[TopicPartition, int]], AbstractContextManager[tuple[ProducerSettings, Hook]]]


class Attempt(ExitStack):
    """The resources of one attempt, which are closed at its end, and the error that ended it."""

    processor: Processor | None = None  # set while it runs
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End the attempt because of ``error``, which no retry can resolve; later errors are ignored. A handler must
        then raise `RetryLater`, so that its message stays unhandled."""
        if self.error is None:
            self.error = error
            self.stop()

    def stop(self) -> None:
        if (processor := self.processor) is not None:  # the attempt may end concurrently
            processor.stop()


class Member(Loop):
    """Reads topics as a member of a consumer group. Create it in the process that runs it, after the fork.

    ``status``: the status of a new member, or of the replaced member, whose counts continue. ``tap``: an observer of
    its attempts. ``counts_unfinished``: see `MemberHealth`.
    """

    counts_unfinished = True

    def __init__(
        self,
        status: MemberStatus,
        consumer: ConsumerSettings,
        producer: ProducerSettings,
        *,
        tap: Tap | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(f"the consumer of {status.name}", clock)
        self.name = status.name
        self.restarts = status.restarts
        status.pid = os.getpid()
        self.health = MemberHealth(status, self.clock, counts_unfinished=self.counts_unfinished)
        self._probe_at = 0.0
        self._consumer_settings, self._producer_settings = consumer, producer
        self._tap = tap
        self._attempt = Attempt()  # the latest attempt

    @abstractmethod
    def open(self, attempt: Attempt) -> Processor:
        """Open the processor of one attempt, with `open_clients`."""

    def open_clients(
        self, attempt: Attempt, positions: Mapping[TopicPartition, int] | None = None
    ) -> tuple[KafkaConsumer, KafkaProducer, Sequence[Hook]]:
        """Open the clients of an attempt, and return them, and the hooks of its processor."""
        settings = self._producer_settings
        hooks: list[Hook] = [self.health]
        if self._tap is not None:
            settings, hook = attempt.enter_context(self._tap(settings, {} if positions is None else positions))
            hooks.append(hook)
        producer = open_producer(settings)
        attempt.callback(producer.close, CLOSE_SECONDS)
        consumer = open_consumer(self._consumer_settings)
        attempt.callback(consumer.close, CLOSE_SECONDS)
        return consumer, producer, hooks

    def run(self) -> None:
        super().run()
        self.health.enter(MemberState.STOPPED)

    def failed(self, error: Exception) -> None:
        self._attempt = Attempt()  # forget the error, whose traceback refers to the clients
        self.health.enter(MemberState.FAILED, str(error) or type(error).__name__)

    def stop(self) -> None:
        """Finish the messages in handlers, commit, and leave the group, within ``stop_timeout_seconds``."""
        super().stop()
        self._attempt.stop()

    def status(self) -> MemberStatus:
        """Return the current status. Thread-safe."""
        consumer = None if (processor := self._attempt.processor) is None else processor.consumer
        if consumer is not None and self.clock.monotonic() >= self._probe_at:
            self._probe_at = self.clock.monotonic() + _PROBE_SECONDS
            self._probe(consumer)
        return structs.replace(self.health.report(consumer), restarts=self.restarts)

    def _probe(self, consumer: KafkaConsumer) -> None:
        """Send a request to the brokers, because a consumer without messages may be idle or disconnected."""
        try:
            consumer.partition_count(consumer.settings.topics[0], _PROBE_PATIENCE_SECONDS)
        except MessagingError as error:
            self.health.waits(MemberState.WAITING_FOR_KAFKA, str(error))
        else:
            self.health.waits(MemberState.WAITING_FOR_KAFKA, "")

    def serve(self) -> None:
        """Run one attempt: open its clients, process messages, and close the clients."""
        with Attempt() as attempt:
            self._attempt = attempt
            processor = attempt.processor = self.open(attempt)
            attempt.callback(setattr, attempt, "processor", None)
            self.health.begin()
            if not self.stopping.is_set():
                processor.run()
        if attempt.error is not None:
            raise attempt.error


class WorkerPart(Protocol):
    """A part of a worker, which runs in its own thread: a member, or another loop."""

    def run(self) -> None: ...
    def stop(self) -> None: ...
    def status(self) -> MemberStatus: ...
