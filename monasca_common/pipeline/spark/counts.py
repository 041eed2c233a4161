# SPDX-License-Identifier: Apache-2.0
"""What executors have met in a batch, for whoever watches: a task that runs twice counts twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Adder:
    """Travels to the executors."""

    messages: Accumulator[int]
    records: Accumulator[int]
    rejected: Accumulator[int]

    def __call__(self, messages: int, records: int, rejected: int) -> None:
        self.messages.add(messages)
        self.records.add(records)
        self.rejected.add(rejected)


class Counts:
    """Read by the driver, after the batch."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self._messages, self._records, self._rejected = (context.accumulator(0) for _ in range(3))

    @property
    def messages(self) -> int:
        return int(self._messages.value)

    @property
    def records(self) -> int:
        """A message counts once for each specification that takes it."""
        return int(self._records.value)

    @property
    def rejected(self) -> int:
        return int(self._rejected.value)

    def adder(self) -> Adder:
        """What executors call."""
        return Adder(self._messages, self._records, self._rejected)
