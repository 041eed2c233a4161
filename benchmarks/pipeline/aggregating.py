# SPDX-License-Identifier: Apache-2.0
"""A backlog of metrics on Spark: the job `aggregate` with publication, or a plain job that discards its result.

The plain job parses with `from_json` and groups by hour, name, host and tenant. Both jobs first process a tenth of the
backlog, which is not measured, to start the workers and warm up the JVM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.formats import metrics_registry
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.process_tree import cpu_seconds
from benchmarks.topics import AVRO
from monasca_common.kafka import KafkaProducer
from monasca_common.kafka.plugins import kafka_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline.aggregate.batch import Aggregation
from monasca_common.pipeline.aggregate.periods import Closing, PeriodPublisher
from monasca_common.pipeline.settings import AggregateSettings, SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import open_session
from monasca_common.pipeline.specification.reader import JsonRows, read
from monasca_common.pipeline.specification.specification import Publisher, Specifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES = ("total_used_mb", "space_used_perc", "inode_used_perc", "read_req_sec", "write_req_sec")
_ENVELOPE = (
    "metric struct<name:string,dimensions:map<string,string>,timestamp:double,value:double>,"
    "meta struct<tenantId:string,region:string>,creation_time double"
)


def run(job: Job) -> Figures:
    if job.case.endswith("-avro"):
        job = dataclasses.replace(job, topic=f"{job.topic}{AVRO}")
    spark = open_session(SparkSettings(master=f"local[{job.threads}]", shuffle_partitions=job.threads), "benchmark")
    consumer = ConsumerSettings(ConnectionSettings(job.servers), (job.topic,), job.group)
    try:
        if job.case.endswith("-bare"):
            return _bare(job, spark, consumer)
        return _ours(job, spark, consumer)
    finally:
        spark.stop()


def _specifications() -> Specifications:
    """Return one specification per name, which groups by host and tenant."""
    pre_transforms = [
        json.dumps({"event_type": f"disk.{name}", "metric_id_list": [name], "required_raw_fields_list": []})
        for name in _NAMES
    ]
    transforms = [json.dumps(_transform(name, f"{name}_agg")) for name in _NAMES]
    return read(JsonRows("pre_transforms", pre_transforms), JsonRows("transforms", transforms))


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
    wanted = _specifications()
    stream = StreamSettings(consumer, ProducerSettings(consumer.connection), job.database)
    with contextlib.ExitStack() as stack:
        if job.topic.endswith(AVRO):
            registry, _ = stack.enter_context(metrics_registry())
            stream = dataclasses.replace(stream, registry=registry)
        source = stack.enter_context(SourceTopic(consumer))
        producer = stack.enter_context(kafka_producer(stream.producer))
        whole = _aggregation(spark, stream, wanted, source, producer, job.topic, job.messages)
        warm = _aggregation(spark, stream, wanted, source, producer, job.topic, job.messages // 10)
        warmed = warm.step().done
        before = cpu_seconds(os.getpid())
        with Stopwatch() as watch:
            report = whole.step()
        used = cpu_seconds(os.getpid()) - before
        assert report.results["rejected"] == 0 and report.results["groups"] > 0
        read_all = warmed + report.done
    return Figures(report.done, watch.seconds, used, next_offsets=read_all, versions=versions())


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
    publisher = PeriodPublisher(
        offset_store, producer, settings.output_topic, settings.publisher, Closing(wanted, 0), "update"
    )
    return Aggregation(spark, settings, source, offset_store, publisher)


def _bare(job: Job, spark: SparkSession, consumer: ConsumerSettings) -> Figures:
    with SourceTopic(consumer) as source:
        extents = source.extents()
    tenth = [OffsetRange(number, 0, extent.end // 10) for number, extent in sorted(extents.items())]
    rest = [OffsetRange(number, extent.end // 10, extent.end) for number, extent in sorted(extents.items())]
    _group(spark, job, tenth)
    before = cpu_seconds(os.getpid())
    with Stopwatch() as watch:
        _group(spark, job, rest)
    used = cpu_seconds(os.getpid()) - before
    messages = sum(each.span for each in rest)
    read_all = sum(extent.end for extent in extents.values())
    return Figures(messages, watch.seconds, used, next_offsets=read_all, versions=versions())


def _group(spark: SparkSession, job: Job, ranges: Sequence[OffsetRange]) -> None:
    from pyspark.sql import functions as f

    envelope = f.from_json(f.col("value").cast("string"), _ENVELOPE).alias("envelope")
    hour = f.floor(f.col("metric.timestamp") / 3_600_000)
    host, tenant = f.col("metric.dimensions")["hostname"], f.col("meta.tenantId")
    value = f.col("metric.value")
    (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("assign", json.dumps({job.topic: [each.partition for each in ranges]}))
        .option("startingOffsets", json.dumps({job.topic: {str(each.partition): each.start for each in ranges}}))
        .option("endingOffsets", json.dumps({job.topic: {str(each.partition): each.end for each in ranges}}))
        .load()
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
