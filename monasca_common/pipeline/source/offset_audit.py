# SPDX-License-Identifier: Apache-2.0
"""Reports the offsets of committed batches to the audit, as the tier ``spark``. A range is reported after its
transaction, so a rolled-back range is never reported. If a driver is killed in between, or the outcome of a transaction
is unknown, the next driver covers the range, because it first reports the stored offsets from which it starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.reports import HandledRange
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import TopicPartition

TIER = "spark"


class OffsetAudit:
    """The audit of one job in one process. ``reporter``: the reporter of this tier and of the job's consumer group."""

    def __init__(self, reporter: AuditReporter) -> None:
        self._reporter = reporter
        self._known: set[TopicPartition] = set()  # partitions whose stored offset has been reported

    def starts_at(self, topic: str, next_offsets: Mapping[int, int]) -> None:
        """Report the stored offsets. All earlier offsets are accounted for."""
        new = {
            partition: offset
            for partition, offset in next_offsets.items()
            if TopicPartition(topic, partition) not in self._known
        }
        if new:
            self._reporter.handled(HandledRange(topic, each, at, at, position=at) for each, at in sorted(new.items()))
            self._known.update(TopicPartition(topic, partition) for partition in new)

    @contextlib.contextmanager
    def accounting(self, ranges: Sequence[HandledRange]) -> Iterator[None]:
        """Report these ranges after the block, whose transaction accounts for them."""
        try:
            yield
            fail_point("pipeline.before_audit")
            if ranges:
                self._reporter.handled(ranges)
        except BaseException:
            self._known.clear()  # the next read of the stored offsets shows the transaction's outcome
            raise
