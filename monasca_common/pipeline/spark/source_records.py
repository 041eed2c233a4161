# SPDX-License-Identifier: Apache-2.0
"""Reads the records of a batch, each once. Records whose message id is already in the topic are removed before other
computations: a copy from an earlier batch takes precedence; within a batch, the copy with the lowest partition and
offset is kept. The search shuffles only ids and offsets, not values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monasca_common.kafka.message import MESSAGE_ID_HEADER
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.spark import connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = ["partition", "offset"]


@dataclass(frozen=True, slots=True)
class Distinct:
    """Records without duplicates. ``duplicates``: the number of removed records."""

    records: DataFrame
    duplicates: int = 0


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


def repeated(new: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """Return the partition and offset of each record in ``new`` that repeats the message id of a record in ``known`` or
    of an earlier record in ``new``. Both frames have the connector's columns, with headers. A record without an id is
    never a duplicate."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    copies = _identified(new, 1)
    if known is not None:
        copies = copies.unionByName(_identified(known, 0))
    order = Window.partitionBy("message_id").orderBy("is_new", *_PLACE)
    numbered = copies.withColumn("copy", f.row_number().over(order))
    return numbered.where("is_new = 1 AND copy > 1").select(*_PLACE)


@contextlib.contextmanager
def distinct(records: DataFrame, new: DataFrame, known: DataFrame | None = None) -> Iterator[Distinct]:
    """Yield ``records`` without those that are `repeated` in ``new``. The records are valid until the block ends.

    ``new`` has the same records with headers, possibly from another read.
    """
    from pyspark.sql import functions as f

    places = repeated(new, known).persist()
    try:
        # Count before the broadcast, because Spark cancels a broadcast that takes more than five minutes.
        count = places.count()
        yield Distinct(records.join(f.broadcast(places), _PLACE, "left_anti") if count else records, count)
    finally:
        places.unpersist()


def _identified(records: DataFrame, is_new: int) -> DataFrame:
    from pyspark.sql import functions as f

    # The first non-empty message id, as in `Message.message_id`.
    named = f.filter("headers", lambda header: (header["key"] == MESSAGE_ID_HEADER) & (f.length(header["value"]) > 0))
    message_id = f.get(named, f.lit(0))["value"].alias("message_id")
    identified = records.select(message_id, *_PLACE, f.lit(is_new).alias("is_new"))
    return identified.where("message_id IS NOT NULL")
