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


class TopicProducer:
    """A topic's producer, and the posts that wait for it. Thread-safe."""

    def __init__(
        self,
        topic: str,
        producer: KafkaProducer,
        settings: ApiSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.producer = producer
        self.used = False  # whether anything was posted to it
        self._reopening = Reopening(producer)
        self._stalled_after = settings.stalled_after_seconds
        self._monotonic = monotonic
        self._places = threading.BoundedSemaphore(settings.max_in_flight)
        self._stalled = False
        self._look_again_at = float("-inf")

    def enter(self) -> bool:
        """Take a place among the posts that wait for this topic, until `leave`; false where there is none."""
        self.used = True
        return self._places.acquire(blocking=False)

    def leave(self) -> None:
        self._places.release()

    def publish(self, records: Sequence[bytes | Record], timeout: float) -> DeliveryReport:
        return self.producer.publish(self.topic, records, timeout=timeout)

    @property
    def stalled(self) -> bool:
        """Whether Kafka has left a message unacknowledged for too long. Then nobody waits for it: a frozen broker
        must not take a thread and a body of each client until its deadline. What is on its way ends the state by being
        acknowledged, so nothing needs to be tried out."""
        now = self._monotonic()
        if now >= self._look_again_at:
            self._look_again_at = now + _LOOK_AGAIN_SECONDS
            self._stalled = self.is_stalled(self.health())
        return self._stalled

    def health(self) -> ProducerHealth:
        """A producer that a fatal error has finished is reopened by being asked, as `Reopening` says."""
        self._reopening.reopen_if_finished()
        return self.producer.health()

    def is_stalled(self, health: ProducerHealth) -> bool:
        return health.oldest_unacknowledged_seconds > self._stalled_after

    @staticmethod
    def is_refused(health: ProducerHealth) -> bool:
        """Whether Kafka refuses this client for good."""
        return health.finished or isinstance(health.last_error, AuthorizationError | FatalError)


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
                found = TopicProducer(topic, self._open_producer(topic), self._settings, monotonic=self._monotonic)
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
