# SPDX-License-Identifier: Apache-2.0
"""Metrics to aggregates of their periods, each record counted once.

A batch is a range of offsets of each partition, from where the database says to where the log ends. Executors turn it
into partials and stage them; one transaction merges these, advances the offsets and notes the periods that changed;
then these are published. There is no checkpoint: whatever dies, the next batch begins where the database stands.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.pipeline.jobs.computing import Computing
from monasca_common.pipeline.jobs.ranges import next_ranges
from monasca_common.pipeline.ledger import Ledger, OffsetRange, Source
from monasca_common.pipeline.outbox import Outbox, Published
from monasca_common.pipeline.retention import Retention
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.spark.counts import Counts
from monasca_common.pipeline.spark.dead_letters import DeadLetterOffice
from monasca_common.pipeline.topic_view import TopicView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class BatchReport:
    """``offsets``: that were accounted for. ``behind``: that are left. ``rejected``: dead letters."""

    offsets: int = 0
    behind: int = 0
    records: int = 0
    rejected: int = 0
    groups: int = 0
    published: Published = field(default_factory=Published)

    def results(self) -> dict[str, int]:
        return {
            "records": self.records,
            "rejected": self.rejected,
            "groups": self.groups,
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
        self._office = DeadLetterOffice.of(settings.stream)
        self._retention = Retention(ledger, settings.publisher.job, settings.retention_days * DAY_MS)

    def step(self) -> BatchReport:
        """One batch, if there is one, and whatever is to be published.

        Raises `Fenced`, `RecordsLost`, and the errors of Kafka, storage and Spark.
        """
        stream = self._settings.stream
        source = Source(stream.group, stream.topic, self._view.topic_id())
        ranges, behind = next_ranges(self._view, self._ledger, source, stream.max_offsets_per_trigger)
        report = self._batch(source, ranges, behind) if ranges else BatchReport()
        fail_point("pipeline.before_publishing")
        now_ms = self._clock.time_ms()
        published = self._outbox.publish(now_ms)
        self._retention.apply(now_ms)
        return BatchReport(report.offsets, behind, report.records, report.rejected, report.groups, published)

    def _batch(self, source: Source, ranges: Sequence[OffsetRange], behind: int) -> BatchReport:
        stream, counts, batch = self._settings.stream, Counts(self._spark), uuid.uuid4().hex
        fail_point("pipeline.before_staging")
        records = connector.ranges_frame(
            self._spark, stream.consumer, ranges, min_partitions=stream.min_partitions, headers=False
        )
        staged = self._computing.stage(records, batch, counts, self._office)
        fail_point("pipeline.after_staging")
        with self._ledger.advance(source, ranges) as connection:
            groups = self._computing.merge(connection, batch, staged)
            self._computing.clear(connection, batch)
            fail_point("pipeline.inside_transaction")
        fail_point("pipeline.after_commit")
        self._view.commit({each.partition: each.end for each in ranges})
        return BatchReport(sum(each.span for each in ranges), behind, counts.records, counts.rejected, groups)
