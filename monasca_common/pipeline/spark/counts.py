# SPDX-License-Identifier: Apache-2.0
"""Counts of what executors have read in a batch, for monitoring: a task that runs twice counts twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Adder:
    """The part of `Counts` that is pickled for the executors."""

    records: Accumulator[int]
    rejected: Accumulator[int]

    def __call__(self, records: int, rejected: int) -> None:
        self.records.add(records)
        self.rejected.add(rejected)


class TaskCounts:
    """The counters of a batch; the driver reads them after the batch."""

    def __init__(self, spark: SparkSession) -> None:
        self._records, self._rejected = spark.sparkContext.accumulator(0), spark.sparkContext.accumulator(0)

    @property
    def records(self) -> int:
        """How many records: a message counts once for each specification that takes it."""
        return int(self._records.value)

    @property
    def rejected(self) -> int:
        return int(self._rejected.value)

    def adder(self) -> Adder:
        """The function that executors call."""
        return Adder(self._records, self._rejected)
