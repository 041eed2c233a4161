# SPDX-License-Identifier: Apache-2.0
"""Decides which periods are due, and publishes them. The messages of a period depend on its usages and on its row in
``aggregate_period``, which contains its version and whether it is provisional. Both are stored in the database before a
message is sent, so every process that publishes a version sends the same messages with the same ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from monasca_common.kafka import KafkaProducer, portions
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import Record
from monasca_common.pipeline.aggregate import rollup, usage_table
from monasca_common.pipeline.aggregate.output import Spool, output
from monasca_common.pipeline.jobs.job import UNDELIVERED
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.spark.worker_producer import usable
from monasca_common.pipeline.specification.specification import Publisher, Specifications
from monasca_common.pipeline.windows import PERIODS_MS, period_start_ms
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.tables import aggregate_period

#: The names of the job's results, in addition to `UNDELIVERED`.
PERIODS, MESSAGES = "published_periods", "published_messages"


@dataclass(frozen=True, slots=True, order=True)
class Period:
    specification: str
    start_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    period: Period
    version_ms: int
    provisional: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """Decides when a period is over, which is ``slack_ms`` after its end."""

    specifications: Specifications
    slack_ms: int

    def is_open(self, period: Period, now_ms: int) -> bool:
        transform = self.specifications.find(period.specification)
        assert transform is not None
        return now_ms < period.start_ms + PERIODS_MS[transform.period] + self.slack_ms


@dataclass(frozen=True, slots=True)
class UnpublishedPeriods:
    """Counts of periods that have changed since they were published. ``due``: periods that the next turn publishes.
    ``still_open``: periods that are published once they are over, because the option ``emit`` is ``final``."""

    due: int
    still_open: int


def unpublished(
    connection: sa.Connection, job: str, closing: Closing, emit: Literal["update", "final"], now_ms: int
) -> UnpublishedPeriods:
    """Count the periods that ``job`` has not published. A period of a specification that is no longer configured counts
    as due."""
    table = aggregate_period.c
    changed = sa.and_(table.job == job, table.version > table.published)
    total = int(connection.scalar(sa.select(sa.func.count()).where(changed)) or 0)
    still_open = 0
    if emit == "final":
        query = sa.select(table.specification, table.period_start).where(changed, table.provisional)
        marked = (Period(*row) for row in connection.execute(query))
        # The mark is not sufficient, because periods that have ended keep it until the next run of the job.
        still_open = sum(
            closing.specifications.find(period.specification) is not None and closing.is_open(period, now_ms)
            for period in marked
        )
    return UnpublishedPeriods(total - still_open, still_open)


def touch(connection: sa.Connection, job: str, periods: Iterable[Period], closing: Closing, now_ms: int) -> None:
    """Record that these periods have changed. Each becomes due with a greater version than before."""
    table = aggregate_period
    insert = schema.insert(connection, table)
    rows = [
        {
            "job": job,
            "specification": period.specification,
            "period_start": period.start_ms,
            "version": now_ms,
            "published": 0,
            "provisional": closing.is_open(period, now_ms),
        }
        for period in sorted(periods)
    ]
    changed = {"version": _next_version(now_ms), "provisional": insert.excluded.provisional}
    if rows:
        keys = ["job", "specification", "period_start"]
        connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=changed), rows)


def periods_of(specifications: Specifications, windows: Iterable[tuple[str, int]]) -> set[Period]:
    """Return the periods that contain these (specification, window) pairs."""
    found = set()
    for specification, window_ms in windows:
        transform = specifications.find(specification)
        assert transform is not None
        found.add(Period(specification, period_start_ms(transform.period, window_ms)))
    return found


def _next_version(now_ms: int) -> sa.ColumnElement[int]:
    following = aggregate_period.c.version + 1
    return sa.case((following > now_ms, following), else_=now_ms)


@dataclass(frozen=True, slots=True)
class PeriodPublisher:
    """Publishes the due periods of one job."""

    _offset_store: OffsetStore
    _producer: KafkaProducer
    _topic: str
    _publisher: Publisher
    _closing: Closing
    _emit: Literal["update", "final"]

    def publish(self, now_ms: int) -> Counter[str]:
        """Publish all due periods. A period stays due if a message is undelivered or a crash prevents clearing it.
        Return the job's results, including the number of rows without a message, by reason."""
        self._close(now_ms)
        results = Counter({PERIODS: 0, MESSAGES: 0, UNDELIVERED: 0})
        usable(self._producer)
        for due in self._due():
            self._publish(due, results)
        return results

    def _close(self, now_ms: int) -> None:
        """Clear the provisional mark of periods that are over, which gives them a new version."""
        table = aggregate_period.c
        with self._offset_store.reading() as connection:
            marked = [due.period for due in self._rows(connection, table.provisional)]
        over = [period for period in marked if not self._closing.is_open(period, now_ms)]
        if not over:
            return
        with self._offset_store.writing() as connection:
            for period in over:
                connection.execute(
                    aggregate_period.update()
                    .where(*self._of(period), table.provisional)
                    .values(provisional=False, version=_next_version(now_ms))
                )

    def _due(self) -> list[Due]:
        table = aggregate_period.c
        wanted = table.version > table.published
        if self._emit == "final":
            wanted = sa.and_(wanted, sa.not_(table.provisional))
        with self._offset_store.reading() as connection:
            return list(self._rows(connection, wanted))

    def _rows(self, connection: sa.Connection, wanted: sa.ColumnElement[bool]) -> Iterator[Due]:
        """Yield the rows of the configured specifications. Periods of other specifications stay due until those are
        configured again."""
        table = aggregate_period.c
        columns = (table.specification, table.period_start, table.version, table.provisional)
        query = sa.select(*columns).where(table.job == self._publisher.job, wanted).order_by(*columns[:2])
        for specification, start_ms, version_ms, provisional in connection.execute(query):
            if self._closing.specifications.find(specification):
                yield Due(Period(specification, start_ms), version_ms, provisional)

    def _publish(self, noted: Due, results: Counter[str]) -> None:
        with Spool() as messages:
            current = self._compute(noted.period, messages, results)
            if current is None:
                return
            undelivered = sum(map(self._publish_bulk, messages.bulks()))
            fail_point("pipeline.before_clearing")
            if not undelivered:
                self._clear(current)
            delivered = messages.count - undelivered
            results.update({PERIODS: not undelivered, MESSAGES: delivered, UNDELIVERED: undelivered})

    def _compute(self, period: Period, messages: Spool, dropped: Counter[str]) -> Due | None:
        """Write the messages of the period to a spool, so that no transaction is open while Kafka is slow."""
        transform = self._closing.specifications.find(period.specification)
        assert transform is not None
        with self._offset_store.reading() as connection:
            # Version and usages are read from one snapshot. After a later change, the period is due with a greater
            # version.
            current = next(self._rows(connection, sa.and_(*self._of(period))), None)
            if current is None:
                return None
            span = (period.start_ms, period.start_ms + PERIODS_MS[transform.period])
            key, kept = (self._publisher.job, period.specification), rollup.kept_columns(transform)
            found = usage_table.read(connection, *key, *span, ordered_by=kept)
            for usage in rollup.rows(transform, found, dropped):
                row = (self._publisher, transform, usage, period.start_ms)
                messages.add(output(*row, version_ms=current.version_ms, provisional=current.provisional))
        return current

    def _publish_bulk(self, records: Sequence[Record]) -> int:
        parts = portions(records, self._producer.settings)
        return len(records) - sum(self._producer.publish(self._topic, part).delivered_count for part in parts)

    def _clear(self, due: Due) -> None:
        table = aggregate_period.c
        with self._offset_store.writing() as connection:
            connection.execute(
                aggregate_period.update()
                .where(*self._of(due.period), table.published < due.version_ms)
                .values(published=due.version_ms)
            )

    def _of(self, period: Period) -> tuple[sa.ColumnElement[bool], ...]:
        table = aggregate_period.c
        return (
            table.job == self._publisher.job,
            table.specification == period.specification,
            table.period_start == period.start_ms,
        )
