# SPDX-License-Identifier: Apache-2.0
"""Records to Parquet files of one partition and hour each, on the executors, into the hidden folder of their batch.

Spark's own writer makes them: a file is there once the task that wrote it has told the driver that it is complete,
and what another attempt at the same task has left is not there at all. Records that tell no time of their own
have files of their own, by which they are counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from monasca_common.pipeline.archive import reading
from monasca_common.pipeline.archive.event_time import kafka_ms, with_own_ms
from monasca_common.pipeline.archive.layout import HOUR_MS, Offsets
from monasca_common.pipeline.archive.manifest import ArchivedFile
from monasca_common.pipeline.archive.settings import Compression
from monasca_common.pipeline.archive.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of the connector's rows that are kept; the topic is in the name of the folder.
KEPT = ("partition", "offset", "timestamp", "key", "value", "headers")
# Spark names folders by these, and takes them out of the files.
_PARTITION, _HOUR, _DATED = "of_partition", "of_hour", "is_dated"
_PLACE = re.compile(
    rf"/{_PARTITION}=(?P<partition>\d+)/{_HOUR}=(?P<hour>\d+)/{_DATED}=(?P<dated>\w+)/[^.][^/]*\.parquet"
)
_OPTIONS = {
    # What a task holds of each file that it has open, before it is written.
    "parquet.block.size": str(16 * 1024 * 1024),
    # Values, and offsets and times, are all different: to look for repetitions is work in vain.
    "parquet.enable.dictionary#value": "false",
    "parquet.enable.dictionary#offset": "false",
    "parquet.enable.dictionary#event_time": "false",
    "parquet.size.statistics.enabled": "false",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class Staged:
    """``undated``: records that are filed by Kafka's time."""

    files: tuple[ArchivedFile, ...]
    undated: int


@dataclass(frozen=True, slots=True)
class HourFiles:
    """``folder``: of the batch, where nobody looks."""

    store: Store = field(repr=False)
    topic: str
    batch: str
    folder: str
    compression: Compression

    def stage(self, records: DataFrame) -> Staged:
        """Write the connector's rows to files of the batch's folder; which ones. Each is complete and on its disk."""
        from pyspark.sql import functions as sql

        own = sql.col("own_ms")
        (
            with_own_ms(records.select(*KEPT))
            .withColumn("event_ms", sql.coalesce(own, kafka_ms(sql.col("timestamp"))))
            .select(
                *KEPT,
                sql.timestamp_millis("event_ms").alias("event_time"),
                sql.col("partition").alias(_PARTITION),
                sql.expr(f"event_ms DIV {HOUR_MS}").alias(_HOUR),
                own.isNotNull().alias(_DATED),
            )
            .write.options(compression=self.compression, **_OPTIONS)
            .partitionBy(_PARTITION, _HOUR, _DATED)
            .parquet(self.store.spark_uri(self.folder))
        )
        return self._staged()

    def _staged(self) -> Staged:
        files: list[ArchivedFile] = []
        undated = 0
        for path in self.store.files_below(self.folder):
            place = _PLACE.fullmatch(path.removeprefix(self.folder))
            if place is None:
                continue  # Hadoop's own; or of another attempt at a task, which does not know that it is late
            self.store.sync(path)
            found = reading.content(self.store, path)
            hour_ms, offsets = int(place["hour"]) * HOUR_MS, Offsets(int(place["partition"]), found.first, found.last)
            files.append(ArchivedFile(self.topic, hour_ms, offsets, found.records, found.size_bytes, self.batch, path))
            undated += found.records if place["dated"] == "false" else 0
        return Staged(tuple(files), undated)
