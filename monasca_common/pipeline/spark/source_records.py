# SPDX-License-Identifier: Apache-2.0
"""Reads the records of a batch, each once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.spark import connector
from monasca_common.pipeline.spark.duplicates import Distinct, distinct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SourceRecords:
    """Reads records, without duplicates if ``leaves_out`` is set. Its methods return context managers, whose frames are
    valid until the block ends."""

    def __init__(self, spark: SparkSession, stream: StreamSettings, *, leaves_out: bool) -> None:
        self._spark = spark
        self._stream = stream
        self._leaves_out = leaves_out

    def topic(
        self, ranges: Sequence[OffsetRange], below: Sequence[OffsetRange]
    ) -> contextlib.AbstractContextManager[Distinct]:
        """Yield the records of ``ranges``. With deduplication, a record with an earlier copy (including in ``below``)
        is skipped."""
        records = self._records(ranges)
        if not self._leaves_out:
            return contextlib.nullcontext(Distinct(records))
        filled = [each for each in below if each.span]
        known = self._frame(filled, headers=True) if filled else None
        # The records are read twice, because passing both values and headers to Python takes longer than a second read.
        return distinct(records, self._frame(ranges, headers=True), known)

    def archive(self, records: DataFrame) -> contextlib.AbstractContextManager[Distinct]:
        """Yield ``records`` without duplicates. ``records`` cover whole windows, so they include all copies of a
        record."""
        return distinct(records, records) if self._leaves_out else contextlib.nullcontext(Distinct(records))

    def _records(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the records without headers. If a header names their tenants, its value is the column ``tenant``."""
        name = self._stream.tenant_header
        if name is None:
            return self._frame(ranges, headers=False)
        from pyspark.sql import functions as f

        named = f.filter("headers", lambda header: header["key"] == f.lit(name))
        # Use the last header with this name, as the persister does.
        tenant = f.try_element_at(named, f.lit(-1))["value"]
        return self._frame(ranges, headers=True).withColumn("tenant", tenant).drop("headers")

    def _frame(self, ranges: Sequence[OffsetRange], *, headers: bool) -> DataFrame:
        stream = self._stream
        return connector.ranges_frame(
            self._spark, stream.consumer, ranges, min_partitions=stream.min_partitions, headers=headers
        )
