# SPDX-License-Identifier: Apache-2.0
"""The audit of a reader: which offsets a processor has handled, written down before they are committed.

It costs a few operations for each batch and none for each message: event times are in the log, and its counter has
them. So nothing that is committed can be missing from the journal, whenever the process is killed. What is written down
and not committed was handled as well; it is handled again, and a set of offsets has each once. What a transaction
handled is reported if that was committed, and not if it was aborted; a process that is killed before it knows leaves it
to the next one to report, and what was not committed is handled again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import HandledRange
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Batch, Hook, TransactionError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.runtime.member import Tap, Tapped


class _Polled(NamedTuple):
    first: int
    following: int
    first_ms: int | None


class ReaderAudit(Hook):
    """``positions``: of a reader that stores them together with what it handled: where its database said that it
    starts, kept up to date by its owner. What lies between its last report and there was handled, by a process that was
    killed before it reported; what lies between there and the first message that it got was not."""

    def __init__(self, reporter: AuditReporter, *, positions: Mapping[TopicPartition, int] | None = None) -> None:
        self._reporter = reporter
        self._positions = {} if positions is None else positions
        self._lock = threading.Lock()  # transactions commit in threads that do not poll
        self._polled: dict[TopicPartition, deque[_Polled]] = defaultdict(deque)
        self._known: set[TopicPartition] = set()  # those that were reported since they were assigned
        self._held: str | None = None  # the report of the commit that is on its way; there is one at a time

    def after_poll(self, batch: Batch) -> None:
        with self._lock:
            for part in batch.partitions:
                polled = self._polled[part.topic_partition]
                while polled and polled[-1].first >= part.start_offset:
                    polled.pop()  # the reader went back
                polled.append(_Polled(part.start_offset, part.next_offset, part.timestamp(0)))

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        now_ms = self._reporter.clock.time_ms()
        with self._lock:
            ranges = [each for partition, end in offsets.items() for each in self._ranges(partition, end, now_ms)]
        self.after_commit({})  # of the one before nobody knows what came of it
        if ranges:
            self._held = self._reporter.handled(ranges, held=True)

    def after_commit(self, outcomes: Mapping[TopicPartition, Exception | None]) -> None:
        if self._held is not None:
            aborted = any(isinstance(error, TransactionError) for error in outcomes.values())
            self._reporter.settle(self._held, aborted=aborted)
            self._held = None

    def after_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self.after_lost(partitions)

    def after_lost(self, partitions: Sequence[TopicPartition]) -> None:
        with self._lock:
            self._known.difference_update(partitions)
            for partition in partitions:
                self._polled.pop(partition, None)

    def _ranges(self, partition: TopicPartition, end: int, now_ms: int) -> list[HandledRange]:
        """What was polled below ``end``; neighbours are one."""
        polled = self._polled[partition]
        position = None if partition in self._known else self._positions.get(partition)
        self._known.add(partition)
        found: list[HandledRange] = []
        while polled and polled[0].first < end:
            first, following, first_ms = polled.popleft()
            if following > end:
                polled.appendleft(_Polled(end, following, None))
                following = end
            if found and found[-1].next == first:
                before = found.pop()
                first, first_ms, delay_ms = before.first, before.first_ms, before.delay_ms
            else:
                delay_ms = 0 if first_ms is None else max(0, now_ms - first_ms)
            found.append(HandledRange(*partition, first, following, first_ms, delay_ms, None if found else position))
        if position is not None and not found:
            found.append(HandledRange(*partition, position, position, position=position))
        return found


def audit_tap(settings: AuditSettings | None, tier: str, application: str) -> Tap | None:
    """Reports what a member reads as that of ``application`` at ``tier``; ``None`` where ``settings`` has no audits."""
    if settings is None:
        return None

    @contextlib.contextmanager
    def tapped(producer: ProducerSettings, positions: Mapping[TopicPartition, int]) -> Iterator[Tapped]:
        # The reporter outlives the producer, which is opened later.
        with AuditReporter(settings, producer, tier, application) as reporter:
            yield Tapped(reporter.audited(producer), (ReaderAudit(reporter, positions=positions),))

    return tapped
