# SPDX-License-Identifier: Apache-2.0
"""Partial aggregates: the state of some records of one group in one window, and the merge of two partials.

Merging is exact: associative and commutative to the last bit. The same records therefore result in an equal partial,
the same output and the same message id, however the input is split (Kafka partitions, batches, retries, other batches
of a backfill). A sum of floats in order of arrival is not exact: ``0.1 + 0.2 + 0.3`` has two values, and ``1e16 + 1 -
1e16`` can lose the 1. Because message ids hash the sum, a repeated message would get a new id. So a sum is stored as a
few floats (in practice one to three) that add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from monasca_common.models import json_text
from monasca_common.models.readings import Reading, exact_sum
from monasca_common.pipeline.aggregate.records import Group, Records

# The maximum number of values that are buffered before they are summed: 32 kB per group.
_MOST_PENDING = 1024

_Key = TypeVar("_Key")


class PartialKey(NamedTuple):
    """``group``: the values of the transform's ``group_by`` columns, in the same order."""

    specification_id: str
    window_ms: int
    group: Group


# Creating a named tuple from a tuple takes a third less time than calling its class.
_reading: Callable[[tuple[float, int, int, float]], Reading] = partial(tuple.__new__, Reading)
_key: Callable[[tuple[str, int, Group]], PartialKey] = partial(tuple.__new__, PartialKey)


def later(one: Reading, other: Reading) -> Reading:
    """Return the later reading; at equal times, the reading with the higher (partition, offset)."""
    return max(one, other)


def earlier(one: Reading, other: Reading) -> Reading:
    """Return the earlier reading; at equal times, the reading with the *higher* (partition, offset), because the last
    report counts."""
    if one.timestamp_ms == other.timestamp_ms:
        return max(one, other)
    return one if one.timestamp_ms < other.timestamp_ms else other


@dataclass(frozen=True, slots=True)
class Partial:
    """The aggregate of at least one record. ``sums``: see `exact_sum`. The times of the first and the last record are
    the times of the readings."""

    count: int
    sums: tuple[float, ...]
    least: float
    greatest: float
    oldest: Reading
    latest: Reading

    @classmethod
    def of(cls, reading: Reading) -> Partial:
        quantity = reading.quantity
        return cls(1, (quantity,) if quantity else (), quantity, quantity, reading, reading)

    @property
    def sum(self) -> float:
        """The float nearest to the exact sum."""
        return self.sums[0] if self.sums else 0.0

    @property
    def average(self) -> float:
        return self.sum / self.count

    @property
    def first_ms(self) -> float:
        return self.oldest.timestamp_ms

    @property
    def last_ms(self) -> float:
        return self.latest.timestamp_ms

    def merge(self, other: Partial) -> Partial:
        """Return the merged partial. ``other`` has different records of the same group and window (or period)."""
        return Partial(
            self.count + other.count,
            exact_sum(self.sums + other.sums),
            min(self.least, other.least),
            max(self.greatest, other.greatest),
            earlier(self.oldest, other.oldest),
            later(self.latest, other.latest),
        )

    def as_row(self) -> tuple[int | float | tuple[float, ...], ...]:
        """Return the fields as one flat row, in order; each `Reading` becomes its fields."""
        return (self.count, self.sums, self.least, self.greatest, *self.oldest, *self.latest)

    @classmethod
    def of_row(cls, row: Sequence[object]) -> Partial:
        """Return the partial of a row that `as_row` returned. ``sums`` may be the concatenated sums of several rows."""
        count, sums, least, greatest, *readings = row
        oldest, latest = Reading(*readings[:4]), Reading(*readings[4:])  # type: ignore[arg-type]
        return cls(count, exact_sum(sums), least, greatest, oldest, latest)  # type: ignore[arg-type]


def merged(partials: Iterable[tuple[_Key, Partial]]) -> dict[_Key, Partial]:
    """Merge the partials of each key into one."""
    found: dict[_Key, Partial] = {}
    for key, one in partials:
        known = found.get(key)
        found[key] = one if known is None else known.merge(one)
    return found


def group_text(group: Group) -> str:
    """Return a group as a JSON array, for a database key or a column of a shuffle."""
    return json_text.write(group).decode()


def group_of_text(text: str) -> Group:
    return tuple(json_text.read(text.encode()))


class _State:
    """The state of one key in `Accumulator`. Values are buffered in a list, because appending a value takes a tenth of
    the time of exact addition."""

    __slots__ = ("count", "greatest", "latest", "least", "oldest", "pending", "sums")

    def __init__(self, reading: Reading) -> None:
        self.count = 0
        self.pending = [reading.quantity]
        self.sums: tuple[float, ...] = ()
        self.least = self.greatest = reading.quantity
        self.oldest = self.latest = reading

    def settle(self) -> None:
        pending = self.pending
        if pending:
            self.count += len(pending)
            self.least = min(self.least, min(pending))
            self.greatest = max(self.greatest, max(pending))
            self.sums = exact_sum((*self.sums, *pending))
            self.pending = []

    def partial(self) -> Partial:
        if self.latest is self.oldest and not self.count and len(self.pending) == 1:
            return Partial.of(self.latest)
        self.settle()
        return Partial(self.count, self.sums, self.least, self.greatest, self.oldest, self.latest)


class Accumulator:
    """Folds batches of records into partials. Memory grows with the number of keys. Not thread-safe."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, int, Group], _State] = {}

    def add(self, records: Records, partitions: Sequence[int], offsets: Sequence[int]) -> None:
        """Add records. ``partitions`` and ``offsets``: the positions of the messages, by message index."""
        states, find = self._states, self._states.get
        for key, timestamp_ms, quantity, index in zip(
            zip(records.specification_ids, records.windows_ms, records.groups, strict=True),
            records.timestamps_ms,
            records.quantities,
            records.indices,
            strict=True,
        ):
            state = find(key)
            if state is None:
                reading = _reading((timestamp_ms, partitions[index], offsets[index], quantity))
                states[key] = _State(reading)
                continue
            state.pending.append(quantity)
            if timestamp_ms >= state.latest[0]:
                reading = _reading((timestamp_ms, partitions[index], offsets[index], quantity))
                state.latest = later(state.latest, reading)
            if timestamp_ms <= state.oldest[0]:
                reading = _reading((timestamp_ms, partitions[index], offsets[index], quantity))
                state.oldest = earlier(state.oldest, reading)
            if len(state.pending) >= _MOST_PENDING:
                state.settle()

    def partials(self) -> Iterator[tuple[PartialKey, Partial]]:
        """Yield all partials so far; further records may be added afterwards."""
        for key, state in self._states.items():
            yield _key(key), state.partial()


def by_window(partials: Mapping[PartialKey, Partial]) -> dict[int, dict[Group, Partial]]:
    """Return the partials of one specification by window (in order of time) and group."""
    windows: dict[int, dict[Group, Partial]] = {}
    for key in sorted(partials):
        windows.setdefault(key.window_ms, {})[key.group] = partials[key]
    return windows
