# SPDX-License-Identifier: Apache-2.0
"""What executors read of the topic for one batch: each record, or each message id once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from monasca_common.pipeline.ledger import OffsetRange
from monasca_common.pipeline.settings import AggregateSettings
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.spark.duplicates import Distinct, distinct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Intake:
    """What it gives can be computed of for as long as its block lasts."""

    def __init__(self, spark: SparkSession, settings: AggregateSettings) -> None:
        self._spark = spark
        self._stream = settings.stream
        self._leaves_out = settings.duplicates_lookback > 0

    @contextlib.contextmanager
    def topic(self, ranges: Sequence[OffsetRange], below: Sequence[OffsetRange]) -> Iterator[Distinct]:
        """The records of ``ranges``; less those, if duplicates are left out, that are ``below`` them as well."""
        records = self._frame(ranges, headers=False)
        if not self._leaves_out:
            yield Distinct(records)
            return
        filled = [each for each in below if each.span]
        known = self._frame(filled, headers=True) if filled else None
        # Read twice, for to carry values and headers to Python together costs more than to read once more.
        with distinct(records, self._frame(ranges, headers=True), known) as found:
            yield found

    @contextlib.contextmanager
    def archive(self, records: DataFrame) -> Iterator[Distinct]:
        """``records``: of whole windows, so that all copies of one are among them."""
        if not self._leaves_out:
            yield Distinct(records)
            return
        with distinct(records, records) as found:
            yield found

    def _frame(self, ranges: Sequence[OffsetRange], *, headers: bool) -> DataFrame:
        stream = self._stream
        return connector.ranges_frame(
            self._spark, stream.consumer, ranges, min_partitions=stream.min_partitions, headers=headers
        )
