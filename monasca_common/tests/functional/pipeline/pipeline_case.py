# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the functional tests of the pipeline: Spark, a real Kafka, a real database, and the expected
results of the plain reference."""

import atexit
import json
import logging
import tempfile
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import fixtures
import sqlalchemy as sa

from monasca_common.kafka import plugins
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Record
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.pipeline.aggregate.batch import Aggregation
from monasca_common.pipeline.aggregate.periods import Closing, PeriodPublisher
from monasca_common.pipeline.archive.batch import Archiver
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.backfill.history import History
from monasca_common.pipeline.settings import AggregateSettings, BatchLimits, SparkSettings, StreamSettings
from monasca_common.pipeline.source.offset_store import OffsetStore, Source
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.session import open_session
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline import pipeline_daemon
from monasca_common.tests.functional.postgresql import SharedPostgresql
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.unit.pipeline import reference
from monasca_common.tests.unit.pipeline.pipeline_case import (
    PUBLISHER,
    PipelineCase,
    envelope,
    pre_row,
    shipped_row,
    specifications,
)
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

PARTITIONS = 2
NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
MINUTE_MS = 60_000
CPU_ROWS = [
    shipped_row("mem_total_all", aggregated_metric_name="cpu_sum", usage_fetch_operation="sum")
    | {"metric_id": "cpu_sum"},
    shipped_row("cpu_total_host", aggregated_metric_name="cpu_host", stages=2) | {"metric_id": "cpu_host"},
]
CPU_PRE_ROWS = [pre_row("cpu", "cpu_sum", "cpu_host")]

# In a JVM that runs for a minute, the optimizing compiler costs more than it saves.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = SparkSettings(
    master="local[2]",
    shuffle_partitions=2,
    options={"spark.driver.extraJavaOptions": QUICK_JAVA, "spark.python.daemon.module": pipeline_daemon.__name__},
)
# Processes that outlive a test use the folder for temporary files that was set before the test.
_TEMPORARY = tempfile.gettempdir()
_sessions: list[tuple[Any, Path]] = []


class SharedSpark(fixtures.Fixture):
    """One session for all tests of this process, with the settings of the first test. A start takes as long as ten
    tests.

    ``deaths``: the folder from which `pipeline_daemon` reads which processes to kill.
    """

    def __init__(self, settings=SPARK):
        self._settings = settings

    def _setUp(self):
        # py4j logs three lines per call at DEBUG, and each test keeps its log.
        logging.getLogger("py4j").setLevel(logging.INFO)
        if not _sessions:
            with fixtures.MonkeyPatch("tempfile.tempdir", _TEMPORARY):
                deaths = tempfile.TemporaryDirectory()
                options = {**self._settings.options, f"spark.executorEnv.{pipeline_daemon.DEATHS}": deaths.name}
                session = open_session(replace(self._settings, options=options), "tests")
            atexit.register(deaths.cleanup)
            atexit.register(session.stop)
            _sessions.append((session, Path(deaths.name)))
        self.session, self.deaths = _sessions[0]


class SetClock(SystemClock):
    """A clock whose time is always ``now_ms``. Its monotonic time changes equally, so that no step of the clock is
    detected."""

    def __init__(self, now_ms):
        self.now_ms = self._begun_ms = now_ms

    def monotonic(self):
        return super().monotonic() + (self.now_ms - self._begun_ms) / 1000

    def time_ms(self):
        return self.now_ms


class KafkaPipelineCase(Waiting, PipelineCase):
    """The job reads and publishes to ``self.topic``, as in production; each test has its own topics, group and
    database."""

    TIMEOUT_SCALING_FACTOR = 2  # starting Spark takes minutes on a busy machine
    database = "sqlite"
    partitions = PARTITIONS
    cluster_settings: ClassVar[dict[str, Any]] = {}

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(**self.cluster_settings))
        self.cluster = self.fixture.cluster
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.topic = self.fixture.topic(self.partitions)
        self.dlq = f"{self.topic}.dlq"
        self.cluster.create_topic(self.dlq, 1)
        self.group = f"spark-{uuid.uuid4().hex[:12]}"
        options = dict(self.client_options())
        self.connection = ConnectionSettings(options.pop("bootstrap.servers"), security=options)
        self.producer = self.new_producer()
        self.url = self.new_database()
        self.offset_store = OffsetStore(self.url)

    def new_database(self):
        if self.database == "sqlite":
            url = f"sqlite:///{self.folder}/{uuid.uuid4().hex}.sqlite"
        else:
            url = self.useFixture(SharedPostgresql()).url
        open_storage(StorageSettings(self.database, url)).upgrade()
        return url

    def archived_history(self):
        """Archive all messages of the topic, and return the history for a backfill."""
        stream = self.stream(group_id=f"archive-{self.group}")
        spark = self.useFixture(SharedSpark()).session
        location = str(self.folder / "archive")
        with SourceTopic(stream.consumer) as topic:
            Archiver(spark, ArchiveSettings((stream,), location), stream, topic, self.offset_store).step()
            source = Source(stream.group, stream.topic, topic.topic_id())
        return History(spark, location, source, self.offset_store, 0)

    # Kafka

    def client_options(self):
        return self.cluster.client_options()

    def new_producer(self):
        producer = plugins.kafka_producer(ProducerSettings(self.connection, linger_ms=0))
        self.addCleanup(producer.close, 1)
        return producer

    def publish(self, values, *, partition=None, topic=None):
        """Publish values or records to the partitions in turn, and return (value, partition, offset) of each."""
        records = [value if isinstance(value, Record) else Record(value) for value in values]
        records = [
            replace(one, partition=number % self.partitions if partition is None else partition)
            if one.partition is None
            else one
            for number, one in enumerate(records)
        ]
        report = self.producer.publish(topic or self.topic, records, timeout=PATIENCE_SECONDS)
        report.raise_for_undelivered()
        return [(records[each.index].value, each.partition, each.offset) for each in report.delivered]

    def read(self, topic, partitions=None):
        """Read all messages of the topic with a separate client."""
        return read_topic(self.cluster, topic, self.partitions if partitions is None else partitions)

    def outputs(self, specs, topic=None):
        """Return (message id, envelope) of each published aggregate, by version and name."""
        found = [
            (dict(message.headers())[MESSAGE_ID_HEADER], envelope)
            for message in self.read(topic or self.topic)
            if (envelope := _envelope(message.value())) and envelope["metric"]["name"] in specs.outputs
        ]
        return sorted(found, key=lambda each: (each[1]["creation_time"], json.dumps(each[1]["metric"])))

    def stored(self, specs, topic=None):
        """Return the newest version of each published row, as a database stores it."""
        return newest(whole for _, whole in self.outputs(specs, topic))

    # The job

    def stream(self, **changes):
        consumer = {"connection": self.connection, "topics": (self.topic,), "group_id": self.group}
        consumer |= {name: changes.pop(name) for name in ("start", "group_id", "topics") if name in changes}
        return StreamSettings(
            ConsumerSettings(**consumer), ProducerSettings(self.connection, linger_ms=0), self.url, **changes
        )

    def aggregation(self, specs, *, clock=None, emit="update", slack_seconds=0, retention_days=36_500, **changes):
        limits = {name: changes.pop(name) for name in ("duplicates_lookback", "one_task_offsets") if name in changes}
        output_topic = changes.pop("output_topic", self.topic)
        stream = self.stream(**changes)
        own = (PUBLISHER, emit, slack_seconds, retention_days, BatchLimits(**limits))
        settings = AggregateSettings(stream, specs, output_topic, *own)
        topic = SourceTopic(stream.consumer)
        self.addCleanup(topic.close)
        publisher = PeriodPublisher(
            self.offset_store, self.producer, output_topic, PUBLISHER, Closing(specs, slack_seconds * 1000), emit
        )
        spark = self.useFixture(SharedSpark()).session
        return Aggregation(spark, settings, topic, self.offset_store, publisher, clock)

    def until_quiet(self, aggregation):
        """Run steps until nothing is left and nothing is published, and return the sums of their results by name."""
        total = Counter()
        while True:
            report = aggregation.step()
            total.update(report.results, offsets=report.done)
            if not (report.done or report.results["published_messages"]):
                return total

    # The database

    def double_rows(self):
        """Return the counts of keys that ``aggregate_usage`` has more than once."""
        key = "job, specification, window_start, group_id"
        return self.scalars(f"SELECT count(*) FROM aggregate_usage GROUP BY {key} HAVING count(*) > 1")

    def scalars(self, statement):
        with self.offset_store.reading() as connection:
            return connection.execute(sa.text(statement)).scalars().all()

    def next_offsets(self):
        return self.offset_store.next_offsets(Source(self.group, self.topic, None))


def cpu(minute, value, host="a", **facts):
    """Return a measurement at this number of minutes after noon."""
    dimensions = {"hostname": host}
    return envelope("cpu", NOON_MS + minute * MINUTE_MS, value, dimensions=dimensions, **facts)


class CpuCase(KafkaPipelineCase):
    """Two specifications of ``cpu``, with one stage and with two. The time is 12:50 unless a test changes it."""

    def setUp(self):
        super().setUp()
        self.specs = specifications(CPU_PRE_ROWS, CPU_ROWS)
        self.clock = SetClock(NOON_MS + 50 * MINUTE_MS)
        self.sent = []

    def job(self, specs=None, **changes):
        return self.aggregation(specs or self.specs, clock=self.clock, **changes)

    def send(self, *values, **where):
        self.sent += self.publish(values, **where)

    @each_once()
    def assert_exact(self, rows=CPU_ROWS):
        self.assertEqual(expected(CPU_PRE_ROWS, rows, self.sent), self.stored(specifications(CPU_PRE_ROWS, rows)))


def expected(pre_rows, rows, messages, *, latest_ms=2**52):
    """Return the rows of the plain reference for ``messages`` (value, partition, offset), in the form of `newest`."""
    names = {row["metric_id"]: row["aggregation_params_map"]["aggregated_metric_name"] for row in rows}
    found, _, _ = reference.aggregate(pre_rows, rows, messages, 0, latest_ms)
    return {
        (names[row.metric_id], row.period_ms, *sorted(row.dimensions.items())): (
            round(float(row.quantity), 6),
            str(row.count),
            _utc(row.first_ms),
            _utc(row.last_ms),
        )
        for row in found
    }


def newest(envelopes):
    """Return the newest version of each row: {(name, time, *dimensions): (value, count, first, last)}."""
    rows, versions = {}, {}
    for whole in envelopes:
        metric = whole["metric"]
        key = (metric["name"], metric["timestamp"], *sorted(metric["dimensions"].items()))
        meta = metric["value_meta"]
        if whole["creation_time"] > versions.get(key, 0):
            versions[key] = whole["creation_time"]
            times = (meta["firstrecord_timestamp_string"], meta["lastrecord_timestamp_string"])
            rows[key] = (round(metric["value"], 6), meta["record_count"], *times)
    return rows


def _envelope(value):
    try:
        whole = json.loads(value)
        return whole if isinstance(whole["metric"]["name"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


def _utc(time_ms):
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
