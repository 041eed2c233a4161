# SPDX-License-Identifier: Apache-2.0
"""A backlog of metrics on Spark, two cores, by the job `evaluate`: staged, merged, every minute evaluated, and changes
published.

A metric matches one definition, that of its name and host; most definitions are of hosts that report nothing. A tenth
of the backlog comes first and is not measured, as for `aggregate`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from benchmarks.databases import add_history_days
from benchmarks.envelopes import HOSTS, TENANT, host_name
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.pipeline.aggregating import NAMES
from benchmarks.process_tree import PeakMemory
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.kafka import KafkaProducer
from monasca_common.kafka.plugins import kafka_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.publishing import TransitionPublisher
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.settings import SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import open_session
from monasca_common.storage import StorageSettings
from monasca_common.storage.retention import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(job: Job) -> Figures:
    _define(job.database, int(job.case.rpartition("-")[2]))
    spark = open_session(SparkSettings(master=f"local[{job.threads}]", shuffle_partitions=job.threads), "benchmark")
    consumer = ConsumerSettings(ConnectionSettings(job.servers), (job.topic,), job.group)
    stream = StreamSettings(consumer, ProducerSettings(consumer.connection), job.database)
    with contextlib.ExitStack() as stack:
        stack.callback(spark.stop)
        source = stack.enter_context(SourceTopic(consumer))
        producer = stack.enter_context(kafka_producer(stream.producer))
        whole = _evaluation(spark, stream, source, producer, job.messages)
        warmed = _evaluation(spark, stream, source, producer, job.messages // 10).step().offsets
        memory = stack.enter_context(PeakMemory())
        with Stopwatch() as watch:
            report = whole.step()
    found = report.batch
    assert found.records == found.offsets and not found.rejected and report.published == report.round.transitions
    return Figures(
        found.offsets,
        watch.seconds,
        memory.cpu_seconds,
        next_offsets=warmed + found.offsets,
        resident_mb=memory.peak_mb,
        versions=versions(),
    )


def _define(url: str, count: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    database = AlarmsDatabase(StorageSettings("postgresql", url), grouped=True)
    definitions = AlarmDefinitions(database)
    for number in range(count):
        host, name = divmod(number, len(NAMES))
        expression = f"avg(disk.{NAMES[name]}{{hostname={host_name(host)}}}) > 90"
        definitions.create(TENANT, AlarmDefinition(f"d{number}", expression), now_ms - DAY_MS)
    assert count >= HOSTS * len(NAMES)
    database.close()
    with OffsetStore(url).writing() as connection:
        add_history_days(connection, now_ms - DAY_MS, now_ms)


def _evaluation(
    spark: SparkSession, stream: StreamSettings, source: SourceTopic, producer: KafkaProducer, most: int
) -> Evaluation:
    stream = dataclasses.replace(stream, max_offsets_per_trigger=most)
    topic = f"{stream.topic}.dlq"  # any that there is
    settings = EvaluateSettings(stream, writes_history=True, alarm_transitions_topic=topic)
    offset_store = OffsetStore(stream.connection)
    return Evaluation(spark, settings, source, offset_store, TransitionPublisher(offset_store, producer, topic))


if __name__ == "__main__":
    main(run)
