# SPDX-License-Identifier: Apache-2.0
"""A backlog in two parts, a tenth that warms up, and the rest that is measured; and how a bare job reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.topic import Extent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def parts(extents: Mapping[int, Extent]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    tenth = [OffsetRange(number, 0, extent.end // 10) for number, extent in sorted(extents.items())]
    rest = [OffsetRange(number, extent.end // 10, extent.end) for number, extent in sorted(extents.items())]
    return tenth, rest


def bare_frame(
    spark: SparkSession, servers: str, topic: str, ranges: Sequence[OffsetRange], *, headers: bool
) -> DataFrame:
    """As the connector's own documentation has it, without any option that need not be."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("assign", json.dumps({topic: [each.partition for each in ranges]}))
        .option("startingOffsets", json.dumps({topic: {str(each.partition): each.start for each in ranges}}))
        .option("endingOffsets", json.dumps({topic: {str(each.partition): each.end for each in ranges}}))
        .option("includeHeaders", str(headers).lower())
        .load()
    )
