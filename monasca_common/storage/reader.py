# SPDX-License-Identifier: Apache-2.0
"""The filters and results of the API's reads. `sql.reader` reads from SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
