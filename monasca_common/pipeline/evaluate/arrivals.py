# SPDX-License-Identifier: Apache-2.0
"""When records came to Kafka: what the executors of a batch have seen of it, for the horizon."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monasca_common.pipeline.spark.counts import Greatest, accumulator

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

BUCKET_MS = 10_000
"""Of Kafka's times no more is kept than the starts of the buckets of this length in which a record came."""
MOST_BUCKETS = 100_000
"""Eleven days of them; of more the newest are kept."""


@dataclass(frozen=True, slots=True)
class ArrivalsAdder:
    """The part of `Arrivals` that is pickled for the executors."""

    last: Accumulator[Mapping[int, tuple[int, int]]]
    buckets: Accumulator[AbstractSet[int]]

    def __call__(self, last: Mapping[int, tuple[int, int]], buckets: AbstractSet[int]) -> None:
        self.last.add(last)
        self.buckets.add(buckets)


class Union:
    """How Spark adds up sets of buckets (an ``AccumulatorParam``)."""

    def zero(self, _value: AbstractSet[int]) -> AbstractSet[int]:
        return frozenset()

    def addInPlace(self, one: AbstractSet[int], other: AbstractSet[int]) -> AbstractSet[int]:  # noqa: N802
        whole = one | other
        return whole if len(whole) <= MOST_BUCKETS else set(sorted(whole)[-MOST_BUCKETS:])


class Arrivals:
    """Those of one batch; the driver reads them after the batch. ``spark``: see `accumulator`."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._last: Accumulator[Mapping[int, tuple[int, int]]] = accumulator(spark, {}, Greatest())
        self._buckets: Accumulator[AbstractSet[int]] = accumulator(spark, frozenset(), Union())

    @property
    def last_ms(self) -> dict[int, int]:
        """Kafka's time of the last record of each partition."""
        return {partition: int(time_ms) for partition, (_, time_ms) in self._last.value.items()}

    @property
    def buckets(self) -> frozenset[int]:
        """The starts of the buckets of `BUCKET_MS` in which a record came."""
        return frozenset(self._buckets.value)

    def adder(self) -> ArrivalsAdder:
        """The function that executors call."""
        return ArrivalsAdder(self._last, self._buckets)
