# SPDX-License-Identifier: Apache-2.0
"""The API's reads from SQLite and PostgreSQL, each limited in time and in rows.

Methods whose results can be long return iterators and are named ``iter_…``. An iterator reads rows in small steps, and
uses a connection until it is exhausted or closed. Names, values and statistics are returned as short lists.

Names and values are sorted by their UTF-8 bytes, ids by their bytes, so the order does not depend on the database.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from monasca_common.models.series import Series
from monasca_common.storage.errors import QueryTooLarge
from monasca_common.storage.reader import (
    FUNCTIONS,
    MAX_ROWS,
    AlarmFilter,
    PageOf,
    Point,
    Position,
    SeriesFilter,
    Span,
    StatisticsPeriod,
    StoredTransition,
)
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql.connections import Deadline, ReadConnections, in_steps
from monasca_common.storage.sql.queries import Queries, Select

_SERIES_IN_A_STATEMENT = 500

T = TypeVar("T")
_decode = msgspec.json.Decoder().decode


class SqlReader:
    """Reads from storage. The threads of the process that opened it may share it. It connects at the first read.

    Every method raises `QueryTimeout`, `QueryTooLarge`, `StorageUnavailable` or `SchemaMismatch`.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._connections = ReadConnections(settings)
        self._queries = Queries(self._connections.dialect)

    def iter_series(self, which: SeriesFilter, page: PageOf) -> Generator[Series]:
        """Yield the series, ordered by id; ``page.after`` is a hexadecimal id."""
        return self._each(self._queries.series(which, page), page.limit, _series)

    def series(self, which: SeriesFilter, page: PageOf) -> list[Series]:
        """Return a few series as a list."""
        return list(self.iter_series(which, page))

    def names(self, which: SeriesFilter, page: PageOf) -> list[str]:
        return [row[0] for row in self._all(self._queries.names(which, page), page.limit)]

    def dimension_names(self, which: SeriesFilter, page: PageOf) -> list[str]:
        return [row[0] for row in self._all(self._queries.dimension_names(which, page), page.limit)]

    def dimension_values(self, which: SeriesFilter, key: str, page: PageOf) -> list[str]:
        return [row[0] for row in self._all(self._queries.dimension_values(which, key, page), page.limit)]

    def iter_measurements(
        self,
        groups: Sequence[Sequence[bytes]],
        span: Span,
        *,
        limit: int,
        after: Position | None = None,
        only_finite: bool = True,
    ) -> Generator[Point]:
        """Yield the measurements of groups of series ids, ordered by group, time and series, unmerged.

        ``after`` is a position in the first group. ``only_finite``: omit NaN and the infinities.
        """
        queries = replace(self._queries, only_finite=only_finite)

        def work(connection: sa.Connection, deadline: Deadline) -> Iterator[Point]:
            left = limit
            for first, run in _runs(groups):
                deadline.check()
                for point in _points(connection, queries, run, span, first, left, None if first else after):
                    left -= 1
                    yield point
                if not left:
                    break

        self._check(limit)
        return self._connections.stream(work)

    def statistics(
        self,
        groups: Sequence[Sequence[bytes]],
        functions: Sequence[str],
        span: Span,
        *,
        period_ms: int,
        limit: int,
        after_ms: int | None = None,
    ) -> list[StatisticsPeriod]:
        """Return statistics (see ``FUNCTIONS``) of each window of ``period_ms`` that has finite values.

        They are ordered by group, then time. ``after_ms``: continue after the first group's window with this time.
        """
        if unknown := set(functions) - set(FUNCTIONS):
            raise ValueError(f"{sorted(unknown)} are not statistics: use {FUNCTIONS}")
        if not groups:
            return []
        start = span.start_ms
        resume_ms = None if after_ms is None else start + ((after_ms - start) // period_ms + 1) * period_ms
        statement = self._queries.statistics(
            groups, functions, span, period_ms=period_ms, limit=limit, resume_ms=resume_ms
        )
        return [
            StatisticsPeriod(group, start + number * period_ms, _finite(values))
            for group, number, *values in self._all(statement, limit)
        ]

    def iter_alarm_history(self, which: AlarmFilter, page: PageOf) -> Generator[StoredTransition]:
        """Yield the transitions, ordered by time."""
        after = None
        if page.after is not None:
            time, _, message_id = page.after.partition("-")
            after = (int(time), bytes.fromhex(message_id))
        return self._each(self._queries.alarm_history(which, page.limit, after), page.limit, _transition)

    def close(self) -> None:
        self._connections.close()

    def _each(self, statement: Select, limit: int, made: Callable[[sa.Row[*tuple[Any, ...]]], T]) -> Generator[T]:
        self._check(limit)
        return self._connections.stream(lambda connection, _deadline: map(made, in_steps(connection, statement, limit)))

    def _all(self, statement: Select, limit: int) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        self._check(limit)
        return self._connections.run(lambda connection, _deadline: connection.execute(statement).all())

    def _check(self, limit: int) -> None:
        if limit > MAX_ROWS:
            raise QueryTooLarge(f"{limit} rows are requested, and the limit is {MAX_ROWS}: request pages")


def _points(
    connection: sa.Connection,
    queries: Queries,
    run: Sequence[Sequence[bytes]],
    span: Span,
    first: int,
    limit: int,
    after: Position | None,
) -> Iterator[Point]:
    numbers = {series_id: first + place for place, group in enumerate(run) for series_id in group}
    if len(run) == 1:
        statement = queries.measurements_merged(run[0], span, limit=limit, after=after)
    else:
        after_ms = None if after is None else after.time_ms
        statement = queries.measurements_apart(list(numbers), span, limit=limit, after_ms=after_ms)
    for time, value, meta, series_id in in_steps(connection, statement, limit):
        # SQLite stores NaN as text.
        yield Point(numbers[series_id], time, float(value), _decode(meta) if meta else {}, series_id)


def _series(row: sa.Row[*tuple[Any, ...]]) -> Series:
    return Series(row.id, row.tenant, row.region, row.name, _decode(row.dimensions))


def _transition(row: sa.Row[*tuple[Any, ...]]) -> StoredTransition:
    return StoredTransition(
        id=f"{row.time}-{row.message_id.hex()}",
        time_ms=row.time,
        alarm_id=row.alarm_id,
        old_state=row.old_state,
        new_state=row.new_state,
        reason=row.reason,
        metrics=_decode(row.metrics),
        sub_alarms=_decode(row.sub_alarms),
    )


def _runs(groups: Sequence[Sequence[bytes]]) -> Iterator[tuple[int, Sequence[Sequence[bytes]]]]:
    """Yield slices of the groups, each small enough for one statement, with the number of its first group.

    One statement reads many groups if each group has one series and the groups are in the order of the key.
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
    if not all(map(math.isfinite, numbers)):  # a sum in SQLite can be infinite, which JSON cannot represent
        raise QueryTooLarge("a sum exceeds what a double can hold: request a shorter time range or fewer series")
    return numbers
