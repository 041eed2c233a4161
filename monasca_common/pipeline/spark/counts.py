# SPDX-License-Identifier: Apache-2.0
"""Counts and event times of the records of a batch, for monitoring. A task that runs twice counts twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_Value = TypeVar("_Value", float, tuple[int, int])

#: Called with the counts of accepted and rejected records, the newest event time of each partition, and the count of
#: records that were skipped because their value is not finite.
OnCounts = Callable[[int, int, Mapping[int, float], int], None]


@dataclass(frozen=True, slots=True)
class Adder:
    """Adds one term to each accumulator; pickled for the executors."""

    accumulators: tuple[Accumulator[Any], ...]

    def __call__(self, *terms: Any) -> None:
        for each, term in zip(self.accumulators, terms, strict=True):
            each.add(term)


class Greatest:
    """Keeps the largest value of each partition, as Spark's ``AccumulatorParam``."""

    def zero(self, _value: Mapping[int, Any]) -> Mapping[int, Any]:
        return {}

    def addInPlace(self, one: Mapping[int, Any], other: Mapping[int, Any]) -> Mapping[int, Any]:  # noqa: N802
        return {each: max(found[each] for found in (one, other) if each in found) for each in {**one, **other}}


def greatest(partitions: Sequence[int], values: Iterable[_Value]) -> dict[int, _Value]:
    """Return the largest value of each partition. ``partitions``: the partition of each value."""
    if partitions and partitions.count(partitions[0]) == len(partitions):  # a task reads only one partition at a time
        return {partitions[0]: max(values)}
    found: dict[int, _Value] = {}
    for partition, value in zip(partitions, values, strict=True):
        found[partition] = max(value, found.get(partition, value))
    return found


@dataclass(frozen=True, slots=True)
class Union:
    """The union of sets of numbers, as Spark's ``AccumulatorParam``. Only the ``most`` largest numbers are kept, to
    limit the memory of the driver."""

    most: int

    def zero(self, _value: Set[int]) -> Set[int]:
        return frozenset()

    def addInPlace(self, one: Set[int], other: Set[int]) -> Set[int]:  # noqa: N802
        whole = one | other
        return whole if len(whole) <= self.most else frozenset(sorted(whole)[-self.most :])


@dataclass(slots=True)
class _DriverAccumulator:
    """An accumulator on the driver; Spark's own accumulator would stay in memory until the driver ends."""

    value: Any
    param: Any

    def add(self, term: Any) -> None:
        self.value = self.param.addInPlace(self.value, term)


def accumulator(spark: SparkSession | None, zero: Any, param: Any) -> Accumulator[Any]:
    """Return an accumulator for executors, or for the driver without a session."""
    if spark is None:
        return _DriverAccumulator(zero, param)  # type: ignore[return-value]
    return spark.sparkContext.accumulator(zero, param)


class TaskCounts:
    """The accumulators of a batch; the driver reads their values after the batch. ``spark``: see `accumulator`.

    ``records``: a message counts once for each specification that selects it. ``newest_ms``: the latest event time,
    by partition, of these records. ``non_finite``: records that were skipped because their value is NaN, or cannot be
    aggregated.
    """

    def __init__(self, spark: SparkSession | None) -> None:
        from pyspark.accumulators import AddingAccumulatorParam

        self.records: Accumulator[int] = accumulator(spark, 0, AddingAccumulatorParam(0))
        self.rejected: Accumulator[int] = accumulator(spark, 0, AddingAccumulatorParam(0))
        self.newest_ms: Accumulator[Mapping[int, float]] = accumulator(spark, {}, Greatest())
        self.non_finite: Accumulator[int] = accumulator(spark, 0, AddingAccumulatorParam(0))

    def adder(self) -> Adder:
        """Return the function that executors call."""
        return Adder((self.records, self.rejected, self.newest_ms, self.non_finite))
