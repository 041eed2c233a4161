# SPDX-License-Identifier: Apache-2.0
"""A backlog of metrics from Kafka to Parquet, two cores: by the job `archive`, or copied by a bare Spark job.

The copy has the same columns and compression; it neither looks into the records nor files them by hour. Both do a
tenth of the backlog first, which is not measured.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.pipeline.spark_ranges import bare_frame, parts
from benchmarks.process_tree import PeakMemory
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline.archive.batch import Archiving
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.settings import SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")


def run(job: Job) -> Figures:
    spark = open_session(SparkSettings(master=f"local[{job.threads}]", shuffle_partitions=job.threads), "benchmark")
    consumer = ConsumerSettings(ConnectionSettings(job.servers), (job.topic,), job.group)
    try:
        with tempfile.TemporaryDirectory() as folder, SourceTopic(consumer) as topic:
            if job.case.endswith("-bare"):
                return _bare(job, spark, topic, Path(folder))
            return _ours(job, spark, consumer, topic, Path(folder))
    finally:
        spark.stop()


def _ours(job: Job, spark: SparkSession, consumer: ConsumerSettings, topic: SourceTopic, folder: Path) -> Figures:
    def archiving(most: int) -> Archiving:
        stream = StreamSettings(
            consumer, ProducerSettings(consumer.connection), job.database, max_offsets_per_trigger=most
        )
        return Archiving(spark, ArchiveSettings((stream,), str(folder)), stream, topic, OffsetStore(job.database))

    warmed = archiving(job.messages // 10).step().offsets
    whole = archiving(job.messages)
    with PeakMemory() as memory, Stopwatch() as watch:
        report = whole.step()
    assert report.records == report.offsets and report.undated == 0
    return _figures(report.offsets, warmed + report.offsets, watch, memory)


def _bare(job: Job, spark: SparkSession, topic: SourceTopic, folder: Path) -> Figures:
    tenth, rest = parts(topic.extents())
    _copy(job, spark, tenth, folder / "tenth")
    with PeakMemory() as memory, Stopwatch() as watch:
        _copy(job, spark, rest, folder / "rest")
    return _figures(sum(each.span for each in rest), sum(each.end for each in rest), watch, memory)


def _copy(job: Job, spark: SparkSession, ranges: list[OffsetRange], folder: Path) -> None:
    records = bare_frame(spark, job.servers, job.topic, ranges, headers=True).select(*_COLUMNS)
    records.write.option("compression", "zstd").parquet(str(folder))


def _figures(messages: int, read: int, watch: Stopwatch, memory: PeakMemory) -> Figures:
    return Figures(
        messages,
        watch.seconds,
        memory.cpu_seconds,
        next_offsets=read,
        resident_mb=memory.peak_mb,
        versions=versions(),
    )


if __name__ == "__main__":
    main(run)
