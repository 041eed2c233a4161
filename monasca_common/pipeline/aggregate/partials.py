# SPDX-License-Identifier: Apache-2.0
"""Partial aggregates: the state of some records of one group in one window, and the merge of two partials.

Merging is exact: associative and commutative to the last bit. So however the input is split (Kafka partitions,
batches, retries, a backfill in other pieces), the same records make an equal partial, the same output and the same
message id. A sum of floats in order of arrival is not exact (``0.1 + 0.2 + 0.3`` has two values; ``1e16 + 1 - 1e16``
may lose the 1), and an id that hashes such a value would make a repeat look like a new message. So a sum is stored as
the few floats whose exact sum it is; one, two or three of them in practice.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from monasca_common.models import json_text
from monasca_common.models.readings import Reading, exact_sum
from monasca_common.pipeline.aggregate.records import Group, Records

if TYPE_CHECKING:
    from monasca_common.pipeline.components import Sketch

# At most this many values wait to be summed: 32 kB per group.
_MOST_PENDING = 1024


class PartialKey(NamedTuple):
    """``group``: the values of the transform's ``group_by`` columns, in its order."""

    specification_id: str
    window_ms: int
    group: Group


# Building a named tuple from a tuple: a third cheaper than calling its class.
_reading: Callable[[tuple[float, int, int, float]], Reading] = partial(tuple.__new__, Reading)
_key: Callable[[tuple[str, int, Group]], PartialKey] = partial(tuple.__new__, PartialKey)


def later(one: Reading, other: Reading) -> Reading:
    """The later reading; at equal times the one with the higher (partition, offset)."""
    return max(one, other)


def earlier(one: Reading, other: Reading) -> Reading:
    """The earlier reading; at equal times again the one with the *higher* (partition, offset): the last report
    counts."""
    if one.timestamp_ms == other.timestamp_ms:
        return max(one, other)
    return one if one.timestamp_ms < other.timestamp_ms else other


class SketchState(NamedTuple):
    """The state of an operation's `Sketch`."""

    operation: str
    state: bytes

    @property
    def text(self) -> str:
        """Return the text that databases and shuffles have: the operation's name, a colon, and the state in base64."""
        return f"{self.operation}:{base64.b64encode(self.state).decode()}"


def merged_sketch(states: Iterable[SketchState]) -> SketchState | None:
    known = list(states)
    if len(known) < 2:
        return known[0] if known else None
    operation = known[0].operation
    return SketchState(operation, _sketch(operation).merge([each.state for each in known]))


def sketch_of_text(text: str | None) -> SketchState | None:
    """The state of one or more texts, separated by spaces."""
    if not text:
        return None
    found = (each.rpartition(":") for each in text.split())
    return merged_sketch(SketchState(operation, base64.b64decode(state)) for operation, _, state in found)


def _sketch(operation: str) -> Sketch:
    # Imported here, because executors otherwise do without the lookup of plugins, which takes long to import.
    from monasca_common.pipeline import components

    found = components.operation(operation).sketch
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class Partial:
    """The state of at least one record. ``sums``: see `exact_sum`; ``first`` and ``last`` record times are those of the
    readings.

    ``sketch``: the state of the operation that asks for one; ``None`` for all others.
    """

    count: int
    sums: tuple[float, ...]
    least: float
    greatest: float
    oldest: Reading
    latest: Reading
    sketch: SketchState | None = None

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

    @property
    def state(self) -> bytes:
        """The state of the operation's sketch."""
        assert self.sketch is not None
        return self.sketch.state

    def merge(self, other: Partial) -> Partial:
        """The partial of both. ``other`` has other records of the same group and window (or period)."""
        return Partial(
            self.count + other.count,
            exact_sum(self.sums + other.sums),
            min(self.least, other.least),
            max(self.greatest, other.greatest),
            earlier(self.oldest, other.oldest),
            later(self.latest, other.latest),
            merged_sketch([*filter(None, (self.sketch, other.sketch))]) if self.sketch or other.sketch else None,
        )

    def as_row(self) -> tuple[int | float | str | tuple[float, ...] | None, ...]:
        """The fields as one flat row, in their order; each `Reading` becomes its own fields."""
        sketch = self.sketch.text if self.sketch else None
        return (self.count, self.sums, self.least, self.greatest, *self.oldest, *self.latest, sketch)

    @classmethod
    def of_row(cls, row: Sequence[object]) -> Partial:
        """The partial of a row of `as_row`. ``sums`` and the sketch may be the concatenation of several rows', as the
        database has them."""
        count, sums, least, greatest, *readings, sketch = row
        oldest, latest = Reading(*readings[:4]), Reading(*readings[4:])  # type: ignore[arg-type]
        return cls(count, exact_sum(sums), least, greatest, oldest, latest, sketch_of_text(sketch))  # type: ignore[arg-type]


def merged(partials: Iterable[tuple[PartialKey, Partial]]) -> dict[PartialKey, Partial]:
    """Merge the partials of each key into one."""
    found: dict[PartialKey, Partial] = {}
    for key, one in partials:
        known = found.get(key)
        found[key] = one if known is None else known.merge(one)
    return found


def group_text(group: Group) -> str:
    """A group as one text (a JSON array), which serves as a database key or as a column of a shuffle."""
    return json_text.write(group).decode()


def group_of_text(text: str) -> Group:
    return tuple(json_text.read(text.encode()))


class _State:
    """The state of one key in `Accumulator`. Values wait in a list, because appending costs a tenth of exact
    addition."""

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


class _SketchedState(_State):
    """The state of a key whose operation has a sketch."""

    __slots__ = ("_operation", "_sketch", "_sketched")

    def __init__(self, reading: Reading, operation: str) -> None:
        super().__init__(reading)
        self._operation = operation
        self._sketch = _sketch(operation)
        self._sketched = b""

    def settle(self) -> None:
        if self.pending:
            added = self._sketch.of(self.pending)
            self._sketched = self._sketch.merge([self._sketched, added]) if self._sketched else added
        super().settle()

    def partial(self) -> Partial:
        self.settle()
        return replace(super().partial(), sketch=SketchState(self._operation, self._sketched))


class Accumulator:
    """Folds records into partials, many at a time. Memory grows with the number of keys. Not thread-safe.

    ``sketches``: the operations with a sketch, by the ids of the specifications that name them.
    """

    def __init__(self, sketches: Mapping[str, str] | None = None) -> None:
        self._sketches = sketches or {}
        self._states: dict[tuple[str, int, Group], _State] = {}

    def add(self, records: Records, partitions: Sequence[int], offsets: Sequence[int]) -> None:
        """Add records. ``partitions`` and ``offsets`` are those of the messages, by the message's index."""
        states, find, sketches = self._states, self._states.get, self._sketches
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
                operation = sketches.get(key[0])
                states[key] = _State(reading) if operation is None else _SketchedState(reading, operation)
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
        """All partials so far; `add` may be called again afterwards."""
        for key, state in self._states.items():
            yield _key(key), state.partial()


def by_window(partials: Mapping[PartialKey, Partial]) -> dict[int, dict[Group, Partial]]:
    """The partials of one specification by window, in order of time, and then by group."""
    windows: dict[int, dict[Group, Partial]] = {}
    for key in sorted(partials):
        windows.setdefault(key.window_ms, {})[key.group] = partials[key]
    return windows
