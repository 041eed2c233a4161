# SPDX-License-Identifier: Apache-2.0
"""What can be asked of storage: the reads behind the API, each bounded in time and in rows.

Names and values are sorted by their UTF-8 bytes, ids by their bytes: every list has one order, whatever the database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from monasca_common.models.series import Series

FUNCTIONS = ("avg", "min", "max", "sum", "count")


@dataclass(frozen=True, slots=True)
class SeriesFilter:
    """Which series. ``dimensions``: allowed values of each key; none at all means any value.

    ``start_ms`` (inclusive) and ``end_ms`` (inclusive) keep the series that have a measurement in between.
    """

    tenant: str
    region: str | None = None
    name: str | None = None
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PageOf:
    """The position to go on from (exclusive; it need not exist) and how many to return at most."""

    limit: int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Both ends are inclusive."""

    start_ms: int
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A place among a group's rows, in order of time and then series; without a series: behind all of that time."""

    time_ms: int
    series_id: bytes | None = None


class Point(NamedTuple):
    """``group`` is the position in the groups that were asked for; ``value_meta`` is empty where there is none."""

    group: int
    time_ms: int
    value: float
    value_meta: Mapping[str, str]
    series_id: bytes


class Period(NamedTuple):
    """One window of statistics of one group; ``values`` in the order in which they were asked for."""

    group: int
    start_ms: int
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class AlarmFilter:
    """Which transitions. ``dimensions`` as in `SeriesFilter`: one of the alarm's metrics has them all."""

    tenant: str
    alarm_id: str | None = None
    dimensions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoredTransition:
    """``id`` is unique within a tenant and what `PageOf` goes on from; ``metrics`` and ``sub_alarms`` as stored."""

    id: str
    time_ms: int
    alarm_id: str
    old_state: str
    new_state: str
    reason: str
    metrics: Sequence[Mapping[str, Any]]
    sub_alarms: Sequence[Mapping[str, Any]]


class Reader(ABC):
    """Safe to share among threads of the process that opened it.

    Every method raises `QueryTimeout`, `QueryTooLarge`, `StorageUnavailable` or `SchemaMismatch`.
    """

    @abstractmethod
    def series(self, which: SeriesFilter, page: PageOf) -> list[Series]:
        """Ordered by id; ``page.after`` is a hexadecimal id."""

    @abstractmethod
    def names(self, which: SeriesFilter, page: PageOf) -> list[str]: ...

    @abstractmethod
    def dimension_names(self, which: SeriesFilter, page: PageOf) -> list[str]: ...

    @abstractmethod
    def dimension_values(self, which: SeriesFilter, key: str, page: PageOf) -> list[str]: ...

    @abstractmethod
    def measurements(
        self, groups: Sequence[Sequence[bytes]], span: Span, *, limit: int, after: Position | None = None
    ) -> list[Point]:
        """Groups of series ids, the series of a group as one: ordered by group, time, series; every row is kept.

        ``after`` is a position in the first group.
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
    ) -> list[Period]:
        """Of ``FUNCTIONS``, over windows of ``period_ms`` that begin at the span's start; no empty windows.

        Ordered by group, then time. ``after_ms`` is in the window of the first group behind which to go on.
        """

    @abstractmethod
    def alarm_history(self, which: AlarmFilter, page: PageOf) -> list[StoredTransition]:
        """Ordered by time."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
