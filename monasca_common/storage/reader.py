# SPDX-License-Identifier: Apache-2.0
"""The interface for the reads of the API, each limited in time and in rows.

Results that clients can make long are iterators, named ``iter_…``, which read rows in small steps and use a connection
until they are exhausted or closed. Names, values and statistics are returned as short lists.

Names and values are sorted by their UTF-8 bytes, ids by their bytes, so the order does not depend on the database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from monasca_common.models.series import Series

MAX_ROWS = 100_000  # the maximum number of rows of one read, which loads them into memory
FUNCTIONS = ("avg", "min", "max", "sum", "count")


@dataclass(frozen=True, slots=True)
class SeriesFilter:
    """Selects series. ``dimensions``: the allowed values of each key; an empty tuple means any value.

    ``start_ms`` (inclusive) and ``end_ms`` (inclusive) keep the series that have a measurement in this range.
    """

    tenant: str
    region: str | None = None
    name: str | None = None
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PageOf:
    """One page: the maximum number of items, and the position after which to continue, which need not exist."""

    limit: int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A time range, inclusive at both ends."""

    start_ms: int
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a group's rows, ordered by time and series; without a series, it is after all rows of that time."""

    time_ms: int
    series_id: bytes | None = None


class Point(NamedTuple):
    """One measurement. ``group``: the index of the requested group; ``value_meta``: empty if there is none."""

    group: int
    time_ms: int
    value: float
    value_meta: Mapping[str, str]
    series_id: bytes


class StatisticsPeriod(NamedTuple):
    """One window of statistics of one group; ``values`` are in the order of the requested functions."""

    group: int
    start_ms: int
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class AlarmFilter:
    """Selects transitions. ``dimensions`` as in `SeriesFilter`; one of the alarm's metrics must match all of them."""

    tenant: str
    alarm_id: str | None = None
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoredTransition:
    """A transition. ``id`` is unique within a tenant, and can be passed to `PageOf`.

    ``metrics`` and ``sub_alarms`` are as stored: usually lists of objects, but the writer of the message determines
    them.
    """

    id: str
    time_ms: int
    alarm_id: str
    old_state: str
    new_state: str
    reason: str
    metrics: Any
    sub_alarms: Any


class Reader(ABC):
    """Reads from storage. The threads of the process that opened it may share it.

    Every method raises `QueryTimeout`, `QueryTooLarge`, `StorageUnavailable` or `SchemaMismatch`.
    """

    @abstractmethod
    def iter_series(self, which: SeriesFilter, page: PageOf) -> Generator[Series]:
        """Yield the series, ordered by id; ``page.after`` is a hexadecimal id."""

    def series(self, which: SeriesFilter, page: PageOf) -> list[Series]:
        """Return a few series as a list."""
        return list(self.iter_series(which, page))

    @abstractmethod
    def names(self, which: SeriesFilter, page: PageOf) -> list[str]: ...

    @abstractmethod
    def dimension_names(self, which: SeriesFilter, page: PageOf) -> list[str]: ...

    @abstractmethod
    def dimension_values(self, which: SeriesFilter, key: str, page: PageOf) -> list[str]: ...

    @abstractmethod
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

    @abstractmethod
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

        Ordered by group, then time. ``after_ms``: continue after the window of the first group that contains it.
        """

    @abstractmethod
    def iter_alarm_history(self, which: AlarmFilter, page: PageOf) -> Generator[StoredTransition]:
        """Yield the transitions, ordered by time."""

    @abstractmethod
    def close(self) -> None: ...
