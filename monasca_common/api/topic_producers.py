# SPDX-License-Identifier: Apache-2.0
"""Each topic that is posted to has a producer, and so connections, a budget and waiting posts, of its own.

A broker answers the requests of a connection in their order, and a fatal error ends the whole client: with one
producer for all, one topic whose answers do not come would stop the posts to every other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from monasca_common.api.limits import Places, places_of
from monasca_common.api.partitions import AnsweringPartitions
from monasca_common.api.reopening import Reopening
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import (
    AuthorizationError,
    ClosedError,
    DeliveryReport,
    FatalError,
    KafkaProducer,
    ProducerHealth,
    Record,
)

_LOOK_AGAIN_SECONDS = 0.1
_TRY_AFTER_SECONDS = 10.0
STALLED_AFTER_SECONDS = 5.0  # without an acknowledgement: posts to the topic are answered 503 immediately


class TopicPlaces:
    """Of the posts that wait for Kafka: some are each topic's own, the others are common. Thread-safe."""

    def __init__(self, places: Places) -> None:
        self._own, self._common = places.own_of_topic, places.common
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def take(self, topic: str) -> bool:
        """Whether there was one."""
        with self._lock:
            taken = self._taken.get(topic, 0)
            if taken >= self._own:
                if not self._common:
                    return False
                self._common -= 1
            self._taken[topic] = taken + 1
            return True

    def give_back(self, topic: str) -> None:
        with self._lock:
            self._taken[topic] -= 1
            if self._taken[topic] >= self._own:
                self._common += 1


class TopicProducer:
    """A topic's producer, and the posts that wait for it. Thread-safe."""

    def __init__(
        self,
        topic: str,
        producer: KafkaProducer,
        settings: ApiSettings,
        places: TopicPlaces,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.producer = producer
        self.used = False  # whether anything was posted to it
        self._reopening = Reopening(producer)
        self._stalled_after = STALLED_AFTER_SECONDS
        self._monotonic = monotonic
        self._places = places
        self._is_old = False
        self._partitions = AnsweringPartitions(
            stalled_after_seconds=STALLED_AFTER_SECONDS,
            try_after_seconds=max(_TRY_AFTER_SECONDS, 2 * settings.publish_timeout_seconds),
        )
        self._look_again_at = float("-inf")

    def enter(self) -> str | None:
        """Take a place among the posts that wait for this topic, until `leave`. Why there is none; ``None``: it is
        taken.

        Nobody waits for a stalled topic: a frozen broker must not take a thread and a body of each client until its
        deadline. What is on its way ends the state by being acknowledged; a post that tries finds partitions that
        answer, if only one is stuck.
        """
        self.used = True
        if self._is_stalled_now() and not self._partitions.tries(self._monotonic()):
            return "has acknowledged nothing for a while"
        if not self._places.take(self.topic):
            return "is waited for by as many requests as may"
        return None

    def leave(self) -> None:
        self._places.give_back(self.topic)

    def publish(self, records: Sequence[bytes | Record], timeout: float) -> DeliveryReport:
        began, partitions = self._monotonic(), self._partitions
        partition = partitions.choose(began)
        if partition is not None:
            records = [_to(partition, record) for record in records]
        report = self.producer.publish(self.topic, records, timeout=timeout)
        if report.unknown:
            partitions.unanswered(partition, [each.message_id for each in report.unknown])
        if partitions.wants_to_know(self._monotonic()):
            partitions.acknowledged({each.partition for each in report.delivered if each.partition is not None}, began)
        return report

    def _is_stalled_now(self) -> bool:
        now = self._monotonic()
        if now >= self._look_again_at:
            self._look_again_at = now + _LOOK_AGAIN_SECONDS
            health = self.health()
            self._partitions.look(health.oldest_unacknowledged_seconds, now)
            self._is_old = self.is_old(health)
        return self._is_old and not self._partitions.any

    def health(self) -> ProducerHealth:
        """A producer that a fatal error has finished is reopened by being asked, as `Reopening` says."""
        self._reopening.reopen_if_finished()
        return self.producer.health()

    def is_old(self, health: ProducerHealth) -> bool:
        """Whether a message is unacknowledged for too long."""
        return health.oldest_unacknowledged_seconds > self._stalled_after

    def is_stalled(self, health: ProducerHealth) -> bool:
        return self.is_old(health) and not self._partitions.any

    @staticmethod
    def is_refused(health: ProducerHealth) -> bool:
        """Whether Kafka refuses this client for good."""
        return health.finished or isinstance(health.last_error, AuthorizationError | FatalError)


def _to(partition: int, record: bytes | Record) -> Record:
    return replace(record, partition=partition) if isinstance(record, Record) else Record(record, partition=partition)


class TopicProducers:
    """Opens a topic's producer when it is first asked for. Thread-safe."""

    def __init__(
        self,
        open_producer: Callable[[str], KafkaProducer],
        settings: ApiSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_producer = open_producer
        self._settings = settings
        self._monotonic = monotonic
        self._opening = threading.Lock()
        self._closed = False
        self._places = TopicPlaces(places_of(settings))
        self._by_topic: dict[str, TopicProducer] = {}

    def of(self, topic: str) -> TopicProducer:
        """Raises `ConfigurationError` where it cannot be opened."""
        found = self._by_topic.get(topic)
        return self._open(topic) if found is None else found

    def _open(self, topic: str) -> TopicProducer:
        with self._opening:
            found = self._by_topic.get(topic)
            if found is None:
                if self._closed:
                    raise ClosedError("the API is closed")
                producer = self._open_producer(topic)
                found = TopicProducer(topic, producer, self._settings, self._places, monotonic=self._monotonic)
                self._by_topic[topic] = found
            return found

    def opened(self) -> list[TopicProducer]:
        return list(self._by_topic.values())

    def close(self, timeout: float) -> int:
        """Close all of them, each within ``timeout`` seconds and one more; how many messages are left undelivered."""
        with self._opening:
            self._closed = True
        opened = self.opened()
        if not opened:
            return 0
        # At the same time: one that waits for its deadline takes nothing of the others' time.
        with ThreadPoolExecutor(len(opened), "api-close") as threads:
            reports = list(threads.map(lambda each: each.producer.close(timeout), opened))
        return sum([len(report.failed) + len(report.unknown) for report in reports])
