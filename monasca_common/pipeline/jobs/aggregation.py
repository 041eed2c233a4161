# SPDX-License-Identifier: Apache-2.0
"""Metrics to aggregates of their periods, each record counted once.

A batch is a range of offsets of each partition, from where the database says to where the log ends. Executors turn it
into partials and stage them; one transaction merges these, advances the offsets and notes the periods that changed;
then these are published. There is no checkpoint: whatever dies, the next batch begins where the database stands.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.jobs.computing import Computing
from monasca_common.pipeline.jobs.intake import Intake
from monasca_common.pipeline.jobs.ranges import below, next_ranges
from monasca_common.pipeline.ledger import Ledger, OffsetRange, Source
from monasca_common.pipeline.outbox import Outbox, Published
from monasca_common.pipeline.retention import Retention
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.spark.counts import Counts
from monasca_common.pipeline.spark.dead_letters import DeadLetterOffice
from monasca_common.pipeline.topic_view import TopicView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class BatchReport:
    """``offsets``: that were accounted for. ``behind``: that are left. ``rejected``: dead letters.
    ``duplicates``: records that were left out."""

    offsets: int = 0
    behind: int = 0
    records: int = 0
    rejected: int = 0
    groups: int = 0
    duplicates: int = 0
    published: Published = field(default_factory=Published)

    def results(self) -> dict[str, int]:
        return {
            "records": self.records,
            "rejected": self.rejected,
            "groups": self.groups,
            "duplicates": self.duplicates,
            "published_periods": self.published.periods,
            "published_messages": self.published.messages,
            "undelivered_messages": self.published.undelivered,
            **self.published.dropped,
        }


class Aggregation:
    """One driver of the job. `step` is called again and again; what it raises leaves everything as it was."""

    def __init__(
        self,
        spark: SparkSession,
        settings: AggregateSettings,
        view: TopicView,
        ledger: Ledger,
        outbox: Outbox,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._view = view
        self._ledger = ledger
        self._outbox = outbox
        self._clock = clock or SystemClock()
        self._computing = Computing(spark, settings, ledger, self._clock)
        self._intake = Intake(spark, settings)
        self._office = DeadLetterOffice.of(settings.stream)
        self._retention = Retention(ledger, settings.publisher.job, settings.retention_days * DAY_MS)

    def step(self) -> BatchReport:
        """One batch, if there is one, and whatever is to be published.

        Raises `Fenced`, `RecordsLost`, and the errors of Kafka, storage and Spark.
        """
        stream = self._settings.stream
        source = Source(stream.group, stream.topic, self._view.topic_id())
        ranges, behind = next_ranges(self._view, self._ledger, source, stream.max_offsets_per_trigger)
        report = self._batch(source, ranges) if ranges else BatchReport()
        fail_point("pipeline.before_publishing")
        now_ms = self._clock.time_ms()
        published = self._outbox.publish(now_ms)
        self._retention.apply(now_ms)
        return replace(report, behind=behind, published=published)

    def _batch(self, source: Source, ranges: Sequence[OffsetRange]) -> BatchReport:
        counts, batch, known = Counts(self._spark), uuid.uuid4().hex, self._below(source)
        fail_point("pipeline.before_staging")
        with self._intake.topic(ranges, known) as taken:
            staged = self._computing.stage(taken.records, batch, counts, self._office)
        fail_point("pipeline.after_staging")
        with self._ledger.advance(source, _fenced(ranges, known), are_all=bool(known)) as connection:
            groups = self._computing.merge(connection, batch, staged)
            self._computing.clear(connection, batch)
            fail_point("pipeline.inside_transaction")
        fail_point("pipeline.after_commit")
        self._view.commit({each.partition: each.end for each in ranges})
        offsets = sum(each.span for each in ranges)
        return BatchReport(offsets, 0, counts.records, counts.rejected, groups, taken.duplicates)

    def _below(self, source: Source) -> list[OffsetRange]:
        """What is accounted for, as far as a batch looks back to find copies there."""
        if not self._settings.duplicates_lookback:
            return []
        firsts = {partition: extent.first for partition, extent in self._view.extents().items()}
        return below(self._ledger.next_offsets(source), firsts, self._settings.duplicates_lookback)


def _fenced(ranges: Sequence[OffsetRange], known: Sequence[OffsetRange]) -> list[OffsetRange]:
    """``ranges``, and of every other partition that was looked back on that it still stands there: another process
    may have counted a copy beyond it. (So it may in a partition that is new.)"""
    moved = {each.partition for each in ranges}
    return [
        *ranges,
        *(OffsetRange(each.partition, each.end, each.end) for each in known if each.partition not in moved),
    ]
