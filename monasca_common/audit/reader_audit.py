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
from collections.abc import Iterator, Mapping, Sequence

from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import HandledRange
from monasca_common.audit.runs import END, Runs, intersection, union
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
        self._polled: dict[TopicPartition, Runs] = {}  # not committed yet
        self._reported: set[TopicPartition] = set()  # partitions whose position was reported after their assignment
        self._held: str | None = None  # the report of the commit in flight, of which there is at most one

    def after_poll(self, batch: Batch) -> None:
        with self._lock:
            for part in batch.partitions:
                # Forget later offsets, which are polled again, because an operator has moved the reader back.
                earlier = intersection(self._polled.get(part.topic_partition, ()), ((0, part.start_offset),))
                self._polled[part.topic_partition] = union(earlier, ((part.start_offset, part.next_offset),))

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
        """Return the polled ranges below ``end``. After an assignment, the first range has the reader's position."""
        polled = self._polled.get(partition, ())
        self._polled[partition] = intersection(polled, ((end, END),))
        handled = intersection(polled, ((0, end),))
        position = None if partition in self._reported else self._positions.get(partition)
        self._reported.add(partition)
        if position is not None and not handled:
            handled = ((position, position),)
        return [HandledRange(*partition, *run, None if number else position) for number, run in enumerate(handled)]


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
