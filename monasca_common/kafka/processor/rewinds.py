# SPDX-License-Identifier: Apache-2.0
"""Partitions that a handler wants to read again from an earlier offset."""

from __future__ import annotations

import threading
from collections.abc import Collection

from monasca_common.kafka.clock import Signal
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processor.offset_tracker import OffsetTracker
from monasca_common.kafka.processor.queues import Lane, Lanes

_REST_SECONDS = 0.2  # before a detour, so that one whose cause lasts does not spin


class Rewinds:
    """Handler threads `ask`; the polling thread, which alone may seek, takes them with `take`."""

    def __init__(self, consumer: KafkaConsumer, lanes: Lanes, tracker: OffsetTracker) -> None:
        self._consumer = consumer
        self._lanes = lanes
        self._tracker = tracker
        self._lock = threading.Lock()
        self._asked: dict[TopicPartition, int] = {}

    def ask(self, lane: Lane, offset: int) -> None:
        """Drop what is in memory of the lane's partition, and have it read again from ``offset``. Of a lane that was
        dropped already nothing happens: what is in memory by now came after it, and nobody would read it again."""
        with self._lock:
            if not lane.dead:
                self._asked[lane.partition] = offset
                self._lanes.drop([lane.partition])

    def take(self) -> set[TopicPartition]:
        """Seek as asked. What a poll returned of these partitions before is void."""
        with self._lock:
            asked, self._asked = self._asked, {}
        for partition, offset in asked.items():
            self._lanes.drop([partition])
            undone = None if self._lanes.ordered else self._tracker.first_undone(partition)
            self._tracker.forget([partition])
            # Other keys' messages were dropped as well, and may lie below what one handler asks for.
            self._consumer.seek(partition, offset if undone is None else min(offset, undone))
        if asked:
            Signal().wait(self._consumer.clock, _REST_SECONDS)
        return set(asked)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that were revoked or lost, because their next owner starts anew."""
        with self._lock:
            for partition in partitions:
                self._asked.pop(partition, None)
