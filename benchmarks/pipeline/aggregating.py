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

from benchmarks.envelopes import NAMES
from benchmarks.formats import metrics_registry
from benchmarks.job import Figures, Job, Stopwatch
from benchmarks.processes import cpu_seconds
from benchmarks.topics import AVRO
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline.aggregate.batch import Aggregation
from monasca_common.pipeline.aggregate.job import open_period_publisher
from monasca_common.pipeline.settings import AggregateSettings, SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import spark_session
from monasca_common.pipeline.specification.reader import JsonRows, read
from monasca_common.pipeline.specification.specification import Publisher, Specifications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENVELOPE = (
    "metric struct<name:string,dimensions:map<string,string>,timestamp:double,value:double>,"
    "meta struct<tenantId:string,region:string>,creation_time double"
)


def run(job: Job) -> Figures:
    consumer = ConsumerSettings(ConnectionSettings(job.servers), (job.topic,), job.group)
    settings = SparkSettings(master=f"local[{job.threads}]", shuffle_partitions=job.threads)
    with spark_session(settings, "benchmark") as spark:
        return (_bare if job.case.endswith("-bare") else _ours)(job, spark, consumer)


def _specifications() -> Specifications:
    """Return one specification per name, which groups by host and tenant."""
    pre_transforms = [
        {"event_type": f"disk.{name}", "metric_id_list": [name], "required_raw_fields_list": []} for name in NAMES
    ]
    transforms = [
        {
            "metric_id": name,
            "aggregation_params_map": {
                "aggregation_pipeline": {
                    "source": "streaming",
                    "usage": "fetch_quantity",
                    "setters": ["set_aggregated_metric_name", "set_aggregated_period"],
                    "insert": ["insert_data"],
                },
                "aggregated_metric_name": f"{name}_agg",
                "aggregation_period": "hourly",
                "aggregation_group_by_list": ["host", "tenant_id"],
                "usage_fetch_operation": "avg",
                "filter_by_list": [],
                "dimension_list": ["host"],
            },
        }
        for name in NAMES
    ]
    return read(
        JsonRows("pre_transforms", map(json.dumps, pre_transforms)), JsonRows("transforms", map(json.dumps, transforms))
    )


def _ours(job: Job, spark: SparkSession, consumer: ConsumerSettings) -> Figures:
    stream = StreamSettings(consumer, ProducerSettings(consumer.connection), job.database)
    with contextlib.ExitStack() as stack:
        if job.topic.endswith(AVRO):
            registry, _ = stack.enter_context(metrics_registry())
            stream = dataclasses.replace(stream, registry=registry)
        settings = AggregateSettings(stream, _specifications(), f"{job.topic}.dlq", Publisher("benchmark", "t", "r"))
        source = stack.enter_context(SourceTopic(consumer))
        offset_store = OffsetStore(stream.connection)
        publisher = stack.enter_context(open_period_publisher(settings, offset_store, source, None))

        def aggregation(most: int) -> Aggregation:
            limited = dataclasses.replace(stream, max_offsets_per_trigger=most)
            return Aggregation(spark, dataclasses.replace(settings, stream=limited), source, offset_store, publisher)

        whole = aggregation(job.messages)
        warmed = aggregation(job.messages // 10).step().done
        before = cpu_seconds(os.getpid())
        with Stopwatch() as watch:
            report = whole.step()
        used = cpu_seconds(os.getpid()) - before
    assert report.results["rejected"] == 0 and report.results["groups"] > 0
    return Figures(report.done, watch.seconds, used, next_offsets=warmed + report.done)


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
    return Figures(messages, watch.seconds, used, next_offsets=sum(extent.end for extent in extents.values()))


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
        .agg(f.sum(value), f.count(value), f.min(value), f.max(value))
        .write.format("noop")
        .mode("overwrite")
        .save()
    )
