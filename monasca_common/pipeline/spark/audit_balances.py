# SPDX-License-Identifier: Apache-2.0
"""The balance of audits at scale: topics are balanced side by side, each by one task, with the rules of `AuditTotals`.

A topic's balance needs the reports of that topic alone. So each report is split by topic, what belongs together is
brought together and sorted, and a task has one book at a time, of the topic that it has come to.
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
from monasca_common.pipeline.jobs.loop import spark_told
from monasca_common.pipeline.settings import SparkSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.spark.arrow import arrow_schema, ddl, row_batches
from monasca_common.pipeline.spark.description import described
from monasca_common.pipeline.spark.session import close_session, open_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTS = (("topic", "string"), ("report", "binary"))
BOOKS = (("topic", "string"), ("balance", "binary"), ("foreign", "long"), ("early", "long"))
_NO_TOPIC = ""  # of reports that cannot be balanced with ours, and are counted


@dataclass(frozen=True, slots=True)
class AuditBalances:
    """In the order of topics, buckets and tiers. ``foreign``, ``early``: see `AuditTotals`."""

    balances: tuple[Reconciliation, ...] = ()
    foreign: int = 0
    early: int = 0


@dataclass(frozen=True, slots=True)
class ReportsByTopic:
    """Rows of the connector to reports of one topic each."""

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
class BooksByTopic:
    """What is split, sorted by topic, to balances; the last row of a topic has what its book left out."""

    rules: AuditRules
    now_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = (part for batch in batches for part in zip(*(each.to_pylist() for each in batch.columns), strict=True))
        yield from row_batches(self._rows(parts), arrow_schema(BOOKS))

    def _rows(self, parts: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | None, int, int]]:
        for topic, of_topic in itertools.groupby(parts, key=lambda part: part[0]):
            book = AuditTotals(self.rules)
            for _, value in of_topic:
                report = reports.decode(value)
                assert report is not None
                book.add(report)
            for each in book.reconciliations(self.now_ms):
                yield topic, msgspec.json.encode(each), 0, 0
            yield topic, None, book.foreign, book.early


def balance(records: DataFrame, rules: AuditRules, now_ms: int, tasks: int) -> AuditBalances:
    """The balance of the reports that are the values of ``records``."""
    parts = records.select("value").mapInArrow(ReportsByTopic(rules), ddl(PARTS))
    together = parts.repartition(tasks, "topic").sortWithinPartitions("topic")
    books = together.mapInArrow(BooksByTopic(rules, now_ms), ddl(BOOKS))
    return balances_of((row.topic, row.balance, row.foreign, row.early) for row in books.toLocalIterator())


def balances_of(rows: Iterable[tuple[str, bytes | None, int, int]]) -> AuditBalances:
    """Rows of `BOOKS`, in which those of a topic are together."""
    found: list[Reconciliation] = []
    foreign = early = 0
    for _, balanced, left_out, ahead in rows:
        if balanced is not None:
            found.append(msgspec.json.decode(balanced, type=Reconciliation))
        foreign += left_out
        early += ahead
    return AuditBalances(tuple(sorted(found, key=lambda each: each.topic)), foreign, early)


def balance_log(
    settings: SparkSettings,
    consumer: ConsumerSettings,
    ranges: Sequence[OffsetRange],
    rules: AuditRules,
    now_ms: int,
) -> AuditBalances:
    """The balance of the reports in these ranges of a topic, in a session of its own.

    Raises `SparkUnavailable`, `SparkFailed`.
    """
    if not ranges:
        return AuditBalances()
    spark = open_session(settings, "monasca-audit")
    try:
        with spark_told(), described(spark, "audit", f"audit: {consumer.topics[0]}"):
            records = connector.ranges_frame(spark, consumer, ranges, headers=False)
            return balance(records, rules, now_ms, settings.shuffle_partitions)
    finally:
        close_session(spark)
