# SPDX-License-Identifier: Apache-2.0
"""Reconciles audits on Spark: one task for each topic, by the rules of `AuditTotals`.

A topic needs only its own reports. So each report is split by topic, the parts are shuffled and sorted by topic, and a
task has the totals of one topic at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from monasca_common.audit import reports
from monasca_common.audit.reconciliation import AuditRules, AuditTotals, Reconciliation
from monasca_common.audit.reports import AuditReport
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.spark.arrow import arrow_schema, ddl, row_batches
from monasca_common.pipeline.spark.description import described
from monasca_common.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTS = (("topic", "string"), ("report", "binary"))
TOTALS = (("topic", "string"), ("reconciliation", "binary"), ("foreign", "long"), ("early", "long"))
_NO_TOPIC = ""  # of reports that cannot be reconciled with ours, and are counted


@dataclass(frozen=True, slots=True)
class ReconciledLog:
    """The reconciliations in the order of topics, buckets and tiers. ``foreign``, ``early``: see `AuditTotals`."""

    reconciliations: tuple[Reconciliation, ...] = ()
    foreign: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class ReportsByTopic:
    """Splits the reports in rows of the connector to reports of one topic each."""

    rules: AuditRules

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = (value for batch in batches for value in batch.column("value").to_pylist())
        found = (report for value in values if (report := reports.decode(value)) is not None)
        rows = ((topic, reports.encode(part)) for report in found for topic, part in self._parts(report))
        yield from row_batches(rows, arrow_schema(PARTS))

    def _parts(self, report: AuditReport) -> Iterable[tuple[str, AuditReport]]:
        if report.bucket_seconds != self.rules.bucket_seconds:
            return [(_NO_TOPIC, msgspec.structs.replace(report, counts=(), handled=()))]
        return reports.by_topic(report)


@dataclass(frozen=True, slots=True)
class TotalsByTopic:
    """Reconciles reports of one topic each, which are sorted by topic; the last row of a topic has what was left
    out."""

    rules: AuditRules
    now_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = (part for batch in batches for part in zip(*(each.to_pylist() for each in batch.columns), strict=True))
        yield from row_batches(self._rows(parts), arrow_schema(TOTALS))

    def _rows(self, parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | None, int, int]]:
        for topic, of_topic in itertools.groupby(parts, key=lambda part: part[0]):
            totals = AuditTotals(self.rules)
            for _, value in of_topic:
                report = reports.decode(value)
                assert report is not None
                totals.add(report)
            for each in totals.reconciliations(self.now_ms):
                yield topic, msgspec.json.encode(each), 0, 0
            yield topic, None, totals.foreign, totals.early


def reconcile(records: DataFrame, rules: AuditRules, now_ms: int, tasks: int) -> ReconciledLog:
    """Reconcile the reports that are the values of ``records``."""
    parts = records.select("value").mapInArrow(ReportsByTopic(rules), ddl(PARTS))
    together = parts.repartition(tasks, "topic").sortWithinPartitions("topic")
    rows = together.mapInArrow(TotalsByTopic(rules, now_ms), ddl(TOTALS))
    return reconciliations_of((row.topic, row.reconciliation, row.foreign, row.early) for row in rows.toLocalIterator())


def reconciliations_of(rows: Iterable[tuple[str, bytes | None, int, int]]) -> ReconciledLog:
    """Return the reconciliations of rows of `TOTALS`."""
    found: list[Reconciliation] = []
    foreign = early = 0
    for _, encoded, left_out, ahead in rows:
        if encoded is not None:
            found.append(msgspec.json.decode(encoded, type=Reconciliation))
        foreign += left_out
        early += ahead
    return ReconciledLog(tuple(sorted(found, key=lambda each: each.topic)), foreign, early)


def reconcile_log(
    settings: SparkSettings,
    consumer: ConsumerSettings,
    ranges: Sequence[OffsetRange],
    rules: AuditRules,
    now_ms: int,
) -> ReconciledLog:
    """Reconcile the reports in these ranges of a topic, in a session for this call.

    Raises `SparkUnavailable`, `SparkFailed`.
    """
    if not ranges:
        return ReconciledLog()
    with (
        spark_session(settings, "monasca-audit") as spark,
        described(spark, "audit", f"audit: {consumer.topics[0]}"),
    ):
        records = connector.ranges_frame(spark, consumer, ranges, headers=False)
        return reconcile(records, rules, now_ms, settings.shuffle_partitions)
