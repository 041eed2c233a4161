# SPDX-License-Identifier: Apache-2.0
"""`ProducerPool`: one producer per topic, so that an unresponsive topic or partition does not stop other topics. With a
single producer, one topic could stop all others, because a broker processes the requests of a connection in order, and
a fatal error ends the client.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from monasca_common.kafka.errors import ClosedError, Delivery, MessagingError
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.producer import KafkaProducer, ProducerHealth
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.safe_log import SafeLogger

LOG = SafeLogger(__name__)

STALLED_AFTER_SECONDS = 5.0  # without an acknowledgement
_SLOW_SHARE = 0.2  # after this share of STALLED_AFTER_SECONDS, records go only to the partitions that respond
_PROBE_AFTER_SECONDS = 1.0  # after the topic has stalled
_PROBE_PAUSES = (20.0, 600.0)  # first and longest delay in seconds
_REOPEN_PAUSES = (1.0, 60.0)
_LOOK_SECONDS = 0.1
_MAX_UNANSWERED_IDS = 100_000


class PooledProducer:
    """The producer of one topic. Thread-safe; a race between threads only affects the choice of a bulk's partition."""

    def __init__(self, topic: str, producer: KafkaProducer, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.topic = topic
        self.producer = producer
        self.used = False  # whether a publish was requested
        self.is_old = False  # whether a message was unacknowledged for too long at the last check
        self._is_slow = False
        self._monotonic = monotonic
        self._looked_at = self._sampled_at = self._reopened_at = float("-inf")
        self._reopening, self._reopen_pause = threading.Lock(), _REOPEN_PAUSES[0]
        self._probing, self._probe_at, self._probe_pause = threading.Lock(), 0.0, _PROBE_PAUSES[0]
        self._acknowledged: dict[int, float] = {}  # start time of the latest bulk that each partition acknowledged
        self._answering: tuple[int, ...] = ()  # the partitions that respond while another does not
        self._unanswered_ids: set[bytes | None] = set()  # message ids whose outcome was unknown when publish returned
        self._turns = itertools.count()

    @property
    def is_stalled(self) -> bool:
        """Whether a message has been unacknowledged for too long and no partition is known to respond."""
        return self.is_old and not self._answering

    def accepts(self) -> bool:
        """Return whether to publish now. A stalled topic accepts one bulk at growing intervals, as a probe."""
        self.used = True
        now = self._monotonic()
        if now >= self._looked_at + _LOOK_SECONDS:
            self._looked_at = now  # other threads continue in the meantime
            self.health()
        return not self.is_stalled or self._probes(now)

    def publish(self, records: Sequence[bytes | Record], timeout: float) -> DeliveryReport:
        """Publish records. If a partition does not respond, records go to partitions that do, unless they have keys."""
        began, has_keys = self._monotonic(), getattr(records[0], "key", None) is not None
        answering = () if has_keys else self._answering
        partition = answering[next(self._turns) % len(answering)] if answering else None
        chosen = records if partition is None else [_to(partition, record) for record in records]
        report = self.producer.publish(self.topic, chosen, timeout=timeout)
        if report.unknown and self._has_new_messages(report.unknown) and partition is not None:
            self._acknowledged.pop(partition, None)
            self._answering = tuple([other for other in self._answering if other != partition])
        now = self._monotonic()
        if self._is_slow or now >= self._sampled_at + _LOOK_SECONDS:
            self._sampled_at = now
            found = {each.partition for each in report.delivered if each.partition is not None}
            self._acknowledged.update(dict.fromkeys(found, began))
        return report

    def health(self) -> ProducerHealth:
        """Check the producer. After a fatal error, reopen the producer first, with increasing delays."""
        health, now, was_slow = self.producer.health(), self._monotonic(), self._is_slow
        if health.finished:
            self._reopen(now)
            health = self.producer.health()
        oldest = health.oldest_unacknowledged_seconds
        slow_after = _SLOW_SHARE * STALLED_AFTER_SECONDS
        self._looked_at, self.is_old, self._is_slow = now, oldest > STALLED_AFTER_SECONDS, oldest > slow_after
        if self._is_slow and not was_slow:
            self._probe_at = now - oldest + STALLED_AFTER_SECONDS + _PROBE_AFTER_SECONDS
            self._probe_pause = _PROBE_PAUSES[0]
        if was_slow and not self._is_slow:
            self._unanswered_ids = set()
        # Acknowledgements from just before all of Kafka stopped do not show that a partition responds.
        since = now - oldest + slow_after / 2 if self._is_slow else math.inf
        self._answering = tuple([partition for partition, at in list(self._acknowledged.items()) if at >= since])
        return health

    def _has_new_messages(self, unknown: Sequence[Delivery]) -> bool:
        """Return whether any message is new rather than a repetition of a message without an outcome. A repeated
        message waits for the attempt in flight, possibly in another partition, so it does not show that its own
        partition is stuck."""
        ids = {delivery.message_id for delivery in unknown}
        are_new = not ids <= self._unanswered_ids
        if len(self._unanswered_ids) + len(ids) > _MAX_UNANSWERED_IDS:
            self._unanswered_ids = set()
        self._unanswered_ids |= ids - {None}
        return are_new

    def _probes(self, now: float) -> bool:
        with self._probing:
            if now < self._probe_at:
                return False
            self._probe_at = now + self._probe_pause
            self._probe_pause = min(2 * self._probe_pause, _PROBE_PAUSES[1])
            return True

    def _reopen(self, now: float) -> None:
        if not self._reopening.acquire(blocking=False):
            return
        try:
            waited = now - self._reopened_at
            if waited >= self._reopen_pause:
                had_worked = waited > 2 * _REOPEN_PAUSES[1]
                self._reopen_pause = _REOPEN_PAUSES[0] if had_worked else min(2 * self._reopen_pause, _REOPEN_PAUSES[1])
                self._reopened_at = now
                self.producer.reopen()
        except ClosedError:
            pass  # the pool is closed
        except MessagingError as error:
            LOG.warning("the producer of %s could not be reopened: %s", self.topic, error)
        finally:
            self._reopening.release()


def _to(partition: int, record: bytes | Record) -> Record:
    return replace(record, partition=partition) if isinstance(record, Record) else Record(record, partition=partition)


class ProducerPool:
    """Opens the producer of a topic on first use. Thread-safe; create it after a fork."""

    def __init__(self, open_producer: Callable[[str], KafkaProducer]) -> None:
        self._open_producer = open_producer
        self._opening = threading.Lock()
        self._closed = False
        self._by_topic: dict[str, PooledProducer] = {}

    def of(self, topic: str) -> PooledProducer:
        """Return the producer of a topic. Raises `ConfigurationError`, and `ClosedError` after `close`."""
        if (found := self._by_topic.get(topic)) is not None:
            return found
        with self._opening:
            if topic not in self._by_topic:
                if self._closed:
                    raise ClosedError("the producer pool is closed")
                self._by_topic[topic] = PooledProducer(topic, self._open_producer(topic))
            return self._by_topic[topic]

    def opened(self) -> list[PooledProducer]:
        return list(self._by_topic.values())

    def close(self, timeout: float) -> list[DeliveryReport]:
        """Close all producers concurrently, within ``timeout`` + 1 s. The reports list undelivered messages."""
        with self._opening:
            self._closed = True
        with ThreadPoolExecutor(max(1, len(self._by_topic)), "kafka-pool-close") as threads:
            return list(threads.map(lambda each: each.producer.close(timeout), self.opened()))
