# SPDX-License-Identifier: Apache-2.0
"""Removes records whose message id is already in the topic, before other computations. A copy from an earlier batch
takes precedence; within a batch, the copy with the lowest partition and offset is kept. The search shuffles only ids
and offsets, not values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monasca_common.kafka.message import MESSAGE_ID_HEADER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = ["partition", "offset"]


@dataclass(frozen=True, slots=True)
class Distinct:
    """Records without duplicates. ``duplicates``: the number of removed records."""

    records: DataFrame
    duplicates: int = 0


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
