# SPDX-License-Identifier: Apache-2.0
"""Counts and times of what executors have read in a batch, for monitoring: a task that runs twice counts twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Adder:
    """The part of `Counts` that is pickled for the executors."""

    records: Accumulator[int]
    rejected: Accumulator[int]
    newest_ms: Accumulator[Mapping[int, float]]

    def __call__(self, records: int, rejected: int, newest_ms: Mapping[int, float]) -> None:
        self.records.add(records)
        self.rejected.add(rejected)
        self.newest_ms.add(newest_ms)


class Greatest:
    """How Spark adds up values by partition: the greatest stays (an ``AccumulatorParam``)."""

    def zero(self, _value: Mapping[int, Any]) -> Mapping[int, Any]:
        return {}

    def addInPlace(self, one: Mapping[int, Any], other: Mapping[int, Any]) -> Mapping[int, Any]:  # noqa: N802
        return {each: max(found[each] for found in (one, other) if each in found) for each in {**one, **other}}


class TaskCounts:
    """The counters of a batch; the driver reads them after the batch."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self._records, self._rejected = context.accumulator(0), context.accumulator(0)
        self._newest_ms: Accumulator[Mapping[int, float]] = context.accumulator({}, Greatest())  # type: ignore[arg-type]

    @property
    def records(self) -> int:
        """How many records: a message counts once for each specification that takes it."""
        return int(self._records.value)

    @property
    def rejected(self) -> int:
        return int(self._rejected.value)

    @property
    def newest_ms(self) -> Mapping[int, float]:
        """The greatest event time of the records of each partition that a specification takes."""
        return dict(self._newest_ms.value)

    def adder(self) -> Adder:
        """The function that executors call."""
        return Adder(self._records, self._rejected, self._newest_ms)
