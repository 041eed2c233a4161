# SPDX-License-Identifier: Apache-2.0
"""A backlog of metrics on Spark, two cores: by the job `aggregate`, staged, merged and published, or by a bare job.

The bare job reads the same offsets, parses by `from_json` and groups once by hour, name, host and tenant; its result
goes nowhere. Both do a tenth of the backlog first, which is not measured: it starts the workers and warms the JVM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.pipeline.spark_ranges import bare_frame, parts
from benchmarks.process_tree import PeakMemory
from monasca_common.kafka import KafkaProducer
from monasca_common.kafka.plugins import kafka_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline import Publisher, Specifications
from monasca_common.pipeline.aggregate.batch import Aggregation
from monasca_common.pipeline.aggregate.periods import Closing, Outbox
from monasca_common.pipeline.settings import AggregateSettings, SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import open_session
from monasca_common.pipeline.specification.reader import JsonRows, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("total_used_mb", "space_used_perc", "inode_used_perc", "read_req_sec", "write_req_sec")
_ENVELOPE = (
    "metric struct<name:string,dimensions:map<string,string>,timestamp:double,value:double>,"
    "meta struct<tenantId:string,region:string>,creation_time double"
)


def run(job: Job) -> Figures:
    spark = open_session(SparkSettings(master=f"local[{job.threads}]", shuffle_partitions=job.threads), "benchmark")
    consumer = ConsumerSettings(ConnectionSettings(job.servers), (job.topic,), job.group)
    try:
        if job.case.endswith("-bare"):
            return _bare(job, spark, consumer)
        return _ours(job, spark, consumer)
    finally:
        spark.stop()


def specifications(count: int) -> Specifications:
    rows = specification_rows(count)
    return read(JsonRows("pre_transforms", rows["pre"]), JsonRows("transforms", rows["transform"]))


def specification_rows(count: int) -> dict[str, list[str]]:
    """``count`` transforms, each over the records of one name, by host and tenant; and what feeds them."""
    fed: dict[str, list[str]] = {name: [] for name in NAMES}
    transforms = []
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        fed[name].append(f"aggregate-{number}")
        transforms.append(json.dumps(_transform(f"aggregate-{number}", f"{name}_{number}_agg")))
    pre_transforms = [
        json.dumps({"event_type": f"disk.{name}", "metric_id_list": ids, "required_raw_fields_list": []})
        for name, ids in fed.items()
        if ids
    ]
    return {"pre": pre_transforms, "transform": transforms}


def _transform(metric_id: str, name: str) -> dict[str, object]:
    return {
        "metric_id": metric_id,
        "aggregation_params_map": {
            "aggregation_pipeline": {
                "source": "streaming",
                "usage": "fetch_quantity",
                "setters": ["set_aggregated_metric_name", "set_aggregated_period"],
                "insert": ["insert_data"],
            },
            "aggregated_metric_name": name,
            "aggregation_period": "hourly",
            "aggregation_group_by_list": ["host", "tenant_id"],
            "usage_fetch_operation": "avg",
            "filter_by_list": [],
            "dimension_list": ["host"],
        },
    }


def _ours(job: Job, spark: SparkSession, consumer: ConsumerSettings) -> Figures:
    wanted = specifications(int(job.case.rpartition("-")[2]))
    stream = StreamSettings(consumer, ProducerSettings(consumer.connection), job.database)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(SourceTopic(consumer))
        producer = stack.enter_context(kafka_producer(stream.producer))
        whole = _aggregation(spark, stream, wanted, source, producer, job.topic, job.messages)
        warm = _aggregation(spark, stream, wanted, source, producer, job.topic, job.messages // 10)
        warmed = warm.step().offsets
        memory = stack.enter_context(PeakMemory())
        with Stopwatch() as watch:
            report = whole.step()
        assert report.rejected == 0 and report.groups > 0
        read_all = warmed + report.offsets
    return Figures(
        report.offsets,
        watch.seconds,
        memory.cpu_seconds,
        next_offsets=read_all,
        resident_mb=memory.peak_mb,
        versions=versions(),
    )


def _aggregation(
    spark: SparkSession,
    stream: StreamSettings,
    wanted: Specifications,
    source: SourceTopic,
    producer: KafkaProducer,
    topic: str,
    most: int,
) -> Aggregation:
    stream = dataclasses.replace(stream, max_offsets_per_trigger=most)
    settings = AggregateSettings(stream, wanted, f"{topic}.dlq", Publisher("benchmark", "t", "r"))
    offset_store = OffsetStore(stream.connection)
    outbox = Outbox(offset_store, producer, settings.output_topic, settings.publisher, Closing(wanted, 0), "update")
    return Aggregation(spark, settings, source, offset_store, outbox)


def _bare(job: Job, spark: SparkSession, consumer: ConsumerSettings) -> Figures:
    with SourceTopic(consumer) as source:
        extents = source.extents()
    tenth, rest = parts(extents)
    _group(spark, job, tenth)
    with PeakMemory() as memory, Stopwatch() as watch:
        _group(spark, job, rest)
    messages = sum(each.span for each in rest)
    return Figures(
        messages,
        watch.seconds,
        memory.cpu_seconds,
        next_offsets=sum(extent.end for extent in extents.values()),
        resident_mb=memory.peak_mb,
        versions=versions(),
    )


def _group(spark: SparkSession, job: Job, ranges: Sequence[OffsetRange]) -> None:
    from pyspark.sql import functions as f

    envelope = f.from_json(f.col("value").cast("string"), _ENVELOPE).alias("envelope")
    hour = f.floor(f.col("metric.timestamp") / 3_600_000)
    host, tenant = f.col("metric.dimensions")["hostname"], f.col("meta.tenantId")
    value = f.col("metric.value")
    (
        bare_frame(spark, job.servers, job.topic, ranges, headers=False)
        .select(envelope)
        .select("envelope.*")
        .groupBy(hour.alias("hour"), f.col("metric.name").alias("name"), host.alias("host"), tenant.alias("tenant"))
        .agg(
            f.sum(value).alias("sum"),
            f.count(value).alias("count"),
            f.min(value).alias("min"),
            f.max(value).alias("max"),
        )
        .write.format("noop")
        .mode("overwrite")
        .save()
    )


if __name__ == "__main__":
    main(run)
