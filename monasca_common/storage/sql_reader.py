# SPDX-License-Identifier: Apache-2.0
"""`Reader` over SQL: the same for SQLite and PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from monasca_common.models.series import Series
from monasca_common.storage.errors import QueryTooLarge
from monasca_common.storage.queries import Queries, Select
from monasca_common.storage.read_connections import Deadline, ReadConnections
from monasca_common.storage.reader import (
    FUNCTIONS,
    AlarmFilter,
    PageOf,
    Period,
    Point,
    Position,
    Reader,
    SeriesFilter,
    Span,
    StoredTransition,
)
from monasca_common.storage.settings import StorageSettings

_SERIES_IN_A_STATEMENT = 500


def open_sql_reader(settings: StorageSettings) -> Reader:
    """For the drivers of SQLite and PostgreSQL. Connects at the first read; opened in the process that uses it."""
    return SqlReader(ReadConnections(settings), max_results=settings.max_results)


class SqlReader(Reader):
    def __init__(self, connections: ReadConnections, *, max_results: int) -> None:
        self._connections = connections
        self._queries = Queries(connections.dialect)
        self._max_results = max_results

    def series(self, which: SeriesFilter, page: PageOf) -> list[Series]:
        rows = self._all(self._queries.series(which, page), page.limit)
        return [Series(row.id, row.tenant, row.region, row.name, row.dimensions) for row in rows]

    def names(self, which: SeriesFilter, page: PageOf) -> list[str]:
        return [row[0] for row in self._all(self._queries.names(which, page), page.limit)]

    def dimension_names(self, which: SeriesFilter, page: PageOf) -> list[str]:
        return [row[0] for row in self._all(self._queries.dimension_names(which, page), page.limit)]

    def dimension_values(self, which: SeriesFilter, key: str, page: PageOf) -> list[str]:
        return [row[0] for row in self._all(self._queries.dimension_values(which, key, page), page.limit)]

    def measurements(
        self, groups: Sequence[Sequence[bytes]], span: Span, *, limit: int, after: Position | None = None
    ) -> list[Point]:
        self._check(limit)

        def work(connection: sa.Connection, deadline: Deadline) -> list[Point]:
            points: list[Point] = []
            for first, run in _runs(groups):
                deadline.check()
                points += self._points(connection, run, span, first, limit - len(points), None if first else after)
                if len(points) >= limit:
                    break
            return points

        return self._connections.run(work)

    def statistics(
        self,
        groups: Sequence[Sequence[bytes]],
        functions: Sequence[str],
        span: Span,
        *,
        period_ms: int,
        limit: int,
        after_ms: int | None = None,
    ) -> list[Period]:
        if unknown := set(functions) - set(FUNCTIONS):
            raise ValueError(f"{sorted(unknown)} are no statistics: known are {FUNCTIONS}")
        start = span.start_ms
        resume_ms = None if after_ms is None else start + ((after_ms - start) // period_ms + 1) * period_ms
        statement = self._queries.statistics(
            groups, functions, span, period_ms=period_ms, limit=limit, resume_ms=resume_ms
        )
        return [
            Period(group, start + number * period_ms, _finite(values))
            for group, number, *values in self._all(statement, limit)
        ]

    def alarm_history(self, which: AlarmFilter, page: PageOf) -> list[StoredTransition]:
        after = None
        if page.after is not None:
            time, _, message_id = page.after.partition("-")
            after = (int(time), bytes.fromhex(message_id))
        rows = self._all(self._queries.alarm_history(which, page.limit, after), page.limit)
        return [
            StoredTransition(
                id=f"{row.time}-{row.message_id.hex()}",
                time_ms=row.time,
                alarm_id=row.alarm_id,
                old_state=row.old_state,
                new_state=row.new_state,
                reason=row.reason,
                metrics=row.metrics,
                sub_alarms=row.sub_alarms,
            )
            for row in rows
        ]

    def close(self) -> None:
        self._connections.close()

    def _points(
        self,
        connection: sa.Connection,
        run: Sequence[Sequence[bytes]],
        span: Span,
        first: int,
        limit: int,
        after: Position | None,
    ) -> list[Point]:
        if len(run) == 1:
            rows = connection.execute(self._queries.measurements_merged(run[0], span, limit=limit, after=after))
            return [Point(first, time, value, meta or {}, series_id) for time, value, meta, series_id in rows]
        numbers = {series_id: first + place for place, (series_id,) in enumerate(run)}
        rows = connection.execute(
            self._queries.measurements_apart(
                list(numbers), span, limit=limit, after_ms=None if after is None else after.time_ms
            )
        )
        return [Point(numbers[series_id], time, value, meta or {}, series_id) for time, value, meta, series_id in rows]

    def _all(self, statement: Select, limit: int) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        self._check(limit)
        return self._connections.run(lambda connection, _deadline: connection.execute(statement).all())

    def _check(self, limit: int) -> None:
        if limit > self._max_results:
            raise QueryTooLarge(
                f"{limit} rows are asked for at once, but [storage] max_results is {self._max_results}: ask for pages"
            )


def _runs(groups: Sequence[Sequence[bytes]]) -> Iterator[tuple[int, Sequence[Sequence[bytes]]]]:
    """Slices of the groups that one statement can answer, each with the number of its first group.

    Groups of one series each, ascending, come in the order of the key, so many of them are read at once.
    """
    first = 0
    while first < len(groups):
        end = first + 1
        while (
            end < len(groups)
            and end - first < _SERIES_IN_A_STATEMENT
            and len(groups[end - 1]) == len(groups[end]) == 1
            and groups[end - 1][0] < groups[end][0]
        ):
            end += 1
        yield first, groups[first:end]
        first = end


def _finite(values: Sequence[Any]) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(map(math.isfinite, numbers)):  # SQLite sums to infinity, which JSON cannot hold
        raise QueryTooLarge("a sum exceeds what a double can hold: ask for a shorter time or fewer series")
    return numbers
