# SPDX-License-Identifier: Apache-2.0
"""How long the evaluator takes to catch up after a pause of two hours: ``python -m benchmarks.alarms.catching_up``.

Each of so many hosts has an alarm and has reported each minute; one of a hundred has changed its state every ten
minutes. Two cores, PostgreSQL, one process. Every change is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator

import sqlalchemy as sa

from benchmarks.databases import Databases, add_history_days
from benchmarks.job import Stopwatch
from benchmarks.librdkafka import PARTITIONS
from benchmarks.process_tree import PeakMemory
from benchmarks.topics import Topics
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import AlarmDefinition
from monasca_common.devbroker import KafkaCluster
from monasca_common.kafka import KafkaProducer, Record
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.plugins import kafka_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.models import json_text
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.publishing import TransitionPublisher
from monasca_common.pipeline.evaluate.settings import EvaluateSettings
from monasca_common.pipeline.settings import SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import open_session
from monasca_common.storage import StorageSettings
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql import tables

MINUTES = 120
_MINUTE_MS = 60_000


class _PausedClock(SystemClock):
    """Stands where the pause begins, until it is over."""

    def __init__(self, paused_ms: int) -> None:
        self.paused_ms: int | None = paused_ms

    def time_ms(self) -> int:
        return super().time_ms() if self.paused_ms is None else self.paused_ms


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alarms.catching_up", description=__doc__)
    parser.add_argument("--alarms", type=int, default=10_000, help="how many hosts, each with an alarm")
    alarms = parser.parse_args().alarms
    with contextlib.ExitStack() as stack:
        cluster, databases = stack.enter_context(KafkaCluster()), stack.enter_context(Databases())
        topics = Topics(cluster)
        topic = stack.enter_context(topics.new())
        for name in (f"{topic}.dlq", f"{topic}.transitions"):
            stack.enter_context(topics.new(name))
        url = stack.enter_context(databases.new("postgresql"))
        _report(stack, cluster.bootstrap_servers, topic, url, alarms)
    return 0


def _report(stack: contextlib.ExitStack, servers: str, topic: str, url: str, alarms: int) -> None:
    began_ms = (time.time_ns() // 1_000_000 // _MINUTE_MS - MINUTES - 2) * _MINUTE_MS
    _define(url, began_ms)
    connection = ConnectionSettings(servers)
    producer = stack.enter_context(kafka_producer(ProducerSettings(connection)))
    clock = _PausedClock(began_ms + _MINUTE_MS)
    evaluation = _evaluation(stack, connection, topic, url, producer, clock)
    _publish(producer, topic, alarms, range(1), began_ms)
    _catch_up(evaluation)
    clock.paused_ms = None
    _publish(producer, topic, alarms, range(1, MINUTES + 1), began_ms)
    with PeakMemory() as memory, Stopwatch() as watch:
        records = _catch_up(evaluation)
    changes = alarms + -(-alarms // 100) * (MINUTES // 10)
    counted = _changes(url)
    if counted != changes:
        raise RuntimeError(f"{changes} changes were to be told, {counted} were")
    rate = records / watch.seconds
    print("| alarms | records | changes | s | records/s | MB |")
    print(f"| {alarms:,} | {records:,} | {changes:,} | {watch.seconds:.1f} | {rate:,.0f} | {memory.peak_mb:,.0f} |")


def _define(url: str, began_ms: int) -> None:
    database = AlarmsDatabase(StorageSettings("postgresql", url))
    definition = AlarmDefinition("cpu", "avg(cpu.user_perc) > 85", match_by=("hostname",))
    AlarmDefinitions(database).create("t", definition, began_ms)
    database.close()
    with OffsetStore(url).writing() as connection:
        add_history_days(connection, began_ms, began_ms + DAY_MS)


def _evaluation(
    stack: contextlib.ExitStack,
    connection: ConnectionSettings,
    topic: str,
    url: str,
    producer: KafkaProducer,
    clock: SystemClock,
) -> Evaluation:
    stream = StreamSettings(ConsumerSettings(connection, (topic,), "catching-up"), ProducerSettings(connection), url)
    settings = EvaluateSettings(stream, writes_history=True, alarm_transitions_topic=f"{topic}.transitions")
    source = stack.enter_context(SourceTopic(stream.consumer))
    spark = open_session(SparkSettings(master="local[2]", shuffle_partitions=2), "benchmark")
    stack.callback(spark.stop)
    offset_store = OffsetStore(url)
    publisher = TransitionPublisher(offset_store, producer, settings.alarm_transitions_topic)
    return Evaluation(spark, settings, source, offset_store, publisher, clock)


def _publish(producer: KafkaProducer, topic: str, alarms: int, minutes: range, began_ms: int) -> None:
    print(f"writing {alarms * len(minutes):,} records ...", file=sys.stderr, flush=True)
    for minute in minutes:
        producer.publish(topic, list(_records(alarms, minute, began_ms)), timeout=60).raise_for_undelivered()


def _records(alarms: int, minute: int, began_ms: int) -> Iterator[Record]:
    time_ms = began_ms + minute * _MINUTE_MS
    for number in range(alarms):
        value = 95.0 if number % 100 == 0 and minute // 10 % 2 else 50.0
        metric = {"name": "cpu.user_perc", "timestamp": time_ms, "value": value, "value_meta": None}
        metric["dimensions"] = {"hostname": f"host-{number}", "service": "nova"}
        whole = {"metric": metric, "meta": {"tenantId": "t", "region": "r"}, "creation_time": time_ms // 1000}
        yield Record(json_text.write(whole), partition=number % PARTITIONS, timestamp_ms=time_ms + 5_000)


def _catch_up(evaluation: Evaluation) -> int:
    """Steps until nothing is left; how many records."""
    records = 0
    while True:
        report = evaluation.step()
        print(f"{report.results()} {dict(report.stage_seconds)}", file=sys.stderr, flush=True)
        records += report.offsets
        if not report.offsets:
            return records


def _changes(url: str) -> int:
    """Published, but for those to UNDETERMINED: who is silent since the records were written is so in earnest."""
    which = tables.alarm_history.c.new_state != "UNDETERMINED"
    with OffsetStore(url).reading() as connection:
        waiting = connection.execute(sa.select(sa.func.count()).select_from(tables.alarm_outbox)).scalar_one()
        if waiting:
            raise RuntimeError(f"{waiting} changes were not published")
        return int(
            connection.execute(sa.select(sa.func.count()).select_from(tables.alarm_history).where(which)).scalar_one()
        )


if __name__ == "__main__":
    raise SystemExit(main())
