# SPDX-License-Identifier: Apache-2.0
"""The audit of a reader, which writes handled offsets to the journal before they are committed.

So the journal contains every committed offset even if the process is killed. An offset that is in the journal but
not committed is handled and reported again, which does not change the set of offsets. The offsets of a transaction are
reported if it is committed; if the process is killed before it knows the outcome, the next process reports them. The
cost is a few operations per batch, not per message, because the counter of the log reports the event times.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import HandledRange
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Batch, Hook, TransactionError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.runtime.member import Tap


class ReaderAudit(Hook):
    """A hook that reports the handled offsets of a processor.

    ``positions``: the start offsets in the database of a reader that stores them with its rows; their owner updates
    them. Messages between the last report and this offset were handled by a process that was killed before its report;
    messages between this offset and the first message that was read were never handled.
    """

    def __init__(self, reporter: AuditReporter, *, positions: Mapping[TopicPartition, int] | None = None) -> None:
        self._reporter = reporter
        self._positions = {} if positions is None else positions
        self._lock = threading.Lock()  # transactions commit in threads that do not poll
        # ranges of offsets, from the first (inclusive) to the second (exclusive)
        self._polled: dict[TopicPartition, deque[tuple[int, int]]] = defaultdict(deque)
        self._reported: set[TopicPartition] = set()  # partitions whose position was reported after their assignment
        self._held: str | None = None  # the report of the commit in flight, of which there is at most one

    def after_poll(self, batch: Batch) -> None:
        with self._lock:
            for part in batch.partitions:
                polled = self._polled[part.topic_partition]
                while polled and polled[-1][0] >= part.start_offset:
                    polled.pop()  # an operator has moved the reader back
                polled.append((part.start_offset, part.next_offset))

    def before_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            ranges = [each for partition, end in offsets.items() for each in self._ranges(partition, end)]
        self.after_commit({})  # the outcome of the previous commit is unknown
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
            self._reported.difference_update(partitions)
            for partition in partitions:
                self._polled.pop(partition, None)

    def _ranges(self, partition: TopicPartition, end: int) -> list[HandledRange]:
        """Return the polled ranges below ``end``; adjacent ranges are merged."""
        polled = self._polled[partition]
        position = None if partition in self._reported else self._positions.get(partition)
        self._reported.add(partition)
        found: list[HandledRange] = []
        while polled and polled[0][0] < end:
            first, following = polled.popleft()
            if following > end:
                polled.appendleft((end, following))
                following = end
            if found and found[-1].next == first:
                first = found.pop().first
            found.append(HandledRange(*partition, first, following, None if found else position))
        if position is not None and not found:
            found.append(HandledRange(*partition, position, position, position=position))
        return found


def audit_tap(settings: AuditSettings | None, tier: str, application: str) -> Tap | None:
    """Return a tap that reports the messages of a member for ``application`` at ``tier``, or ``None`` if disabled."""
    if settings is None:
        return None

    @contextlib.contextmanager
    def tapped(
        producer: ProducerSettings, positions: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[ProducerSettings, Hook]]:
        # The reporter must outlive the producer, which is opened later.
        with AuditReporter(settings, producer, tier, application) as reporter:
            yield reporter.audited(producer), ReaderAudit(reporter, positions=positions)

    return tapped
