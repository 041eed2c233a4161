# SPDX-License-Identifier: Apache-2.0
"""What can be asked of storage: the reads behind the API, each bounded in time and in rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monasca_common.models.series import Series


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


class Point(NamedTuple):
    """``value_meta`` is the JSON object as a dictionary, empty where there is none."""

    time_ms: int
    value: float
    value_meta: Mapping[str, str]


class Period(NamedTuple):
    """One window of statistics; ``values`` in the order in which they were asked for."""

    start_ms: int
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class PageOf:
    """The position to go on from (exclusive) and how many to return at most."""

    limit: int
    after: str | None = None


class Reader(ABC):
    """Every method raises `QueryTimeout`, `QueryTooLarge` or `StorageUnavailable`; lists are in a stable order."""

    @abstractmethod
    def series(self, which: SeriesFilter, page: PageOf) -> list[Series]:
        """Ordered by id; ``page.after`` is the hexadecimal id of the last one seen."""

    @abstractmethod
    def names(self, which: SeriesFilter, page: PageOf) -> list[str]: ...

    @abstractmethod
    def dimension_names(self, which: SeriesFilter, page: PageOf) -> list[str]: ...

    @abstractmethod
    def dimension_values(self, which: SeriesFilter, key: str, page: PageOf) -> list[str]: ...

    @abstractmethod
    def measurements(
        self, series_ids: Sequence[bytes], start_ms: int, end_ms: int | None, page: PageOf
    ) -> list[Point]:
        """Of all these series as one, ordered by time (then series); ``page.after`` as the driver's last cursor."""

    @abstractmethod
    def statistics(
        self,
        series_ids: Sequence[bytes],
        functions: Sequence[str],
        start_ms: int,
        end_ms: int | None,
        period_ms: int,
        page: PageOf,
    ) -> list[Period]:
        """avg, min, max, sum, count over windows of ``period_ms`` that begin at ``start_ms``; no empty windows."""

    @abstractmethod
    def close(self) -> None: ...
