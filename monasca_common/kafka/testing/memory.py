# SPDX-License-Identifier: Apache-2.0
"""`MemoryKafka`: an in-memory broker for one test, with the settings to connect to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import fixtures

from monasca_common.kafka import plugins
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import HandlerError, RetryLater
from monasca_common.kafka.message import Message, PartitionBatch, TopicPartition
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.processor.processor import Processor
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.transport.memory import MemoryBroker, VirtualClock, install_broker, reset_brokers


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of `MemoryKafka.drain`.

    ``committed``: next offsets. ``dead_letters``: each dead-lettered message, with its error. ``put_off``: for each
    partition with uncommitted messages, the number of times that the handler raised `RetryLater` for the first one.
    """

    committed: Mapping[TopicPartition, int]
    dead_letters: tuple[tuple[Message, Exception], ...]
    put_off: Mapping[TopicPartition, int]


_ENDLESS = 5  # after this number of `RetryLater` in a row, `drain` does not wait for the handler
_STEP_SECONDS = 0.002
_VIRTUAL_STEP_SECONDS = 0.05
_STOP_SECONDS = 10.0


class MemoryKafka(fixtures.Fixture):
    """A new memory broker at ``bootstrap_servers`` during a test; all other memory brokers are removed.

    ``broker`` creates topics, returns logs and groups, and fails on demand (`MemoryBroker.inject`). ``clock``: a
    `VirtualClock`, for a test that controls the time.
    """

    broker: MemoryBroker

    def __init__(self, *, bootstrap_servers: str = "memory:9092", clock: Clock | None = None) -> None:
        super().__init__()
        self.bootstrap_servers = bootstrap_servers
        self._clock = clock

    def _setUp(self) -> None:
        reset_brokers()
        self.addCleanup(reset_brokers)
        self.broker = MemoryBroker(clock=self._clock)
        install_broker(self.bootstrap_servers, self.broker)

    def connection(self, client_id: str = "test") -> ConnectionSettings:
        return ConnectionSettings(bootstrap_servers=self.bootstrap_servers, driver="memory", client_id=client_id)

    def producer_settings(self, **changes: Any) -> ProducerSettings:
        """Return producer settings; ``changes`` are fields of `ProducerSettings`."""
        return ProducerSettings(**{"connection": self.connection(), **changes})

    def consumer_settings(self, topic: str, group: str = "test-group", **changes: Any) -> ConsumerSettings:
        """Return consumer settings for one topic; ``changes`` are fields of `ConsumerSettings`."""
        fields = {"connection": self.connection(), "topics": (topic,), "group_id": group, **changes}
        return ConsumerSettings(**fields)

    def producer(self, **changes: Any) -> KafkaProducer:
        """Open a producer for this broker; the fixture closes it."""
        producer = plugins.memory_producer(self.producer_settings(**changes))
        self.addCleanup(producer.close, 1.0)
        return producer

    def consumer(
        self,
        topic: str,
        group: str = "test-group",
        *,
        listener: RebalanceListener | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        **changes: Any,
    ) -> KafkaConsumer:
        """Open a consumer for this broker; the fixture closes it."""
        settings = self.consumer_settings(topic, group, **changes)
        consumer = plugins.memory_consumer(settings, listener=listener, partitions=partitions)
        self.addCleanup(consumer.close)
        return consumer

    def drain(self, processor: Processor, timeout: float = 10.0) -> Drained:
        """Run a processor until all messages in its consumer's partitions are committed, and stop it.

        Waits after failures are shortened. It does not wait for partitions whose handler repeatedly raises `RetryLater`
        (see `Drained`). Raises the handler's exception if it ends the run, or any other error that ends it. Raises
        `TimeoutError`, which names the remaining offsets, after ``timeout`` seconds of real time.
        """
        observer, consumer, end = _Observer(), processor.consumer, Future[None]()
        processor.observe(observer)
        threading.Thread(target=_run, args=(processor, end), daemon=True).start()
        give_up = time.monotonic() + timeout
        while not (end.done() or self._is_drained(consumer, observer) or time.monotonic() > give_up):
            self._let_time_pass(processor)
        failed = end.done() and end.exception() is not None
        left = {} if failed else self._left(consumer)
        owned = failed or consumer.assignment()
        threading.Thread(target=processor.stop, daemon=True).start()
        while not end.done() and time.monotonic() < give_up + _STOP_SECONDS:
            self._let_time_pass(processor)
        error = end.exception() if end.done() else None
        if error is not None:
            own = error.__cause__ if isinstance(error, HandlerError) else None
            raise own or error
        if not owned:
            raise TimeoutError(
                f"the consumer was assigned no partition within {timeout} s: close the other consumers of group "
                f"{consumer.settings.group_id}, or use a longer timeout"
            )
        put_off = {partition: times for partition, times in observer.put_off.items() if partition in left}
        if left.keys() - put_off.keys():
            named = ", ".join(f"{tp.topic}/{tp.partition}: {count}" for tp, count in left.items())
            raise TimeoutError(f"not everything was committed within {timeout} s; offsets left: {named}")
        return Drained(self.broker.committed(consumer.settings.group_id), tuple(observer.letters), put_off)

    def _is_drained(self, consumer: KafkaConsumer, observer: _Observer) -> bool:
        left = self._left(consumer)
        return bool(consumer.assignment()) and all(observer.put_off.get(partition, 0) >= _ENDLESS for partition in left)

    def _left(self, consumer: KafkaConsumer) -> dict[TopicPartition, int]:
        """Return the number of uncommitted offsets of each assigned partition."""
        committed = self.broker.committed(consumer.settings.group_id)
        left = {}
        for partition in consumer.assignment():
            low, high = self.broker.watermarks(partition)
            left[partition] = high - max(low, committed.get(partition, 0))
        return {partition: count for partition, count in left.items() if count > 0}

    def _let_time_pass(self, processor: Processor) -> None:
        processor.retry_now()
        if isinstance(self.broker.clock, VirtualClock):
            self.broker.clock.advance(_VIRTUAL_STEP_SECONDS)
        threading.Event().wait(_STEP_SECONDS)


class _Observer(Hook):
    def __init__(self) -> None:
        self.letters: list[tuple[Message, Exception]] = []
        self.put_off: dict[TopicPartition, int] = {}

    def after_handle(self, part: PartitionBatch, attempt: int, error: BaseException | None) -> None:
        if isinstance(error, RetryLater):
            self.put_off[part.topic_partition] = self.put_off.get(part.topic_partition, 0) + 1
        else:
            self.put_off.pop(part.topic_partition, None)

    def after_dead_letter(self, message: Message, error: Exception) -> None:
        self.letters.append((message, error))


def _run(processor: Processor, end: Future[None]) -> None:
    try:
        processor.run()
    except BaseException as error:
        end.set_exception(error)
    else:
        end.set_result(None)
