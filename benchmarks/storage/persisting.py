# SPDX-License-Identifier: Apache-2.0
"""Measures a persister process that stores a backlog in Kafka as rows, observed through its stored offsets.

This package's persister and sink are the commands with default options. The Go program and Kafka Connect commit to
Kafka; the others store offsets in the database. The measurement starts when a fifth of the backlog is stored and ends
when all of it is stored.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from benchmarks.databases import session_cpu_seconds
from benchmarks.formats import metrics_registry
from benchmarks.job import Figures, Job
from benchmarks.librdkafka import PARTITIONS, consumer_options
from benchmarks.processes import Server, cpu_seconds, running, wait_for
from benchmarks.storage import debezium_sink
from benchmarks.topics import AVRO
from monasca_common.storage import Claim, Kind, Rows, StorageSettings, open_storage

_PROGRAM = (sys.executable, "-m", "monasca_common.cli.main")
_WARM_SHARE = 0.2
_MOST_SECONDS = 300.0
_COMMITTED_SECONDS = 10.0

_CONFIGURATION = """\
[kafka]
bootstrap_servers = {job.servers}
[storage]
driver = postgresql
[database]
connection = {job.database}
"""
_PERSISTER = """\
[kafka_metrics]
topic = {job.topic}
group_id = {job.group}
num_processors = {job.threads}
[kafka_alarm_history]
enabled = false
"""
_SINK = """\
[sink]
mapping_file = {mapping}
group_id = {job.group}
"""
_MAPPING = """\
[sink_rows]
topic = "{job.topic}"
mode = "{mode}"
{key}
[sink_rows.columns]
metric_name = {{type = "text", from = "value.metric.name"}}
metric_dimensions_device = {{type = "text", from = "value.metric.dimensions.device"}}
metric_dimensions_hostname = {{type = "text", from = "value.metric.dimensions.hostname"}}
metric_timestamp = {{type = "integer", from = "value.metric.timestamp"}}
metric_value = {{type = "double", from = "value.metric.value"}}
meta_tenantId = {{type = "text", from = "value.meta.tenantId"}}
"""
_KEY = ("metric_dimensions_hostname", "metric_dimensions_device", "metric_name", "metric_timestamp")


def run(job: Job) -> Figures:
    with contextlib.ExitStack() as stack:
        registry = ""
        if job.topic.endswith(AVRO):
            settings, _ = stack.enter_context(metrics_registry())
            registry = f"[schema_registry]\nurl = {settings.url}\n"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running(_command(job, folder, registry)))
        stored = stack.enter_context(_committed_offsets(job) if job.installed else _stored_offsets(job))
        wait_for(server, lambda: stored() >= job.messages * _WARM_SHARE, _MOST_SECONDS)
        warm, began, before = stored(), time.perf_counter(), _cpu_seconds(server, job.database)
        wait_for(server, lambda: stored() >= job.messages, _MOST_SECONDS)
        seconds = time.perf_counter() - began
        used = _cpu_seconds(server, job.database) - before
    rows = None if job.case.startswith("sink") else job.messages
    return Figures(job.messages - warm, seconds, used, rows=rows)


def _command(job: Job, folder: Path, registry: str) -> list[str]:
    if job.case.startswith("sink"):
        return _sink_command(job, folder)
    if job.case.startswith("persist-go"):
        _create_partitions_and_offsets(job)
        options = ["-conflict"] if job.case.endswith("-conflict") else []
        return [job.installed, *options, job.servers, job.topic, job.group, job.database.replace("+psycopg", "")]
    if job.case.endswith("-bare"):
        _create_partitions_and_offsets(job)
        given = {"options": consumer_options(job), "topic": job.topic, "url": job.database}
        return [sys.executable, "-m", "benchmarks.storage.bare_persister", json.dumps(given)]
    configuration = folder / "persister.conf"
    configuration.write_text((_CONFIGURATION + _PERSISTER).format(job=job) + registry)
    return [*_PROGRAM, "persister", "--config-file", str(configuration)]


def _sink_command(job: Job, folder: Path) -> list[str]:
    """Create the table of the sink, and return the command of the sink or of Kafka Connect."""
    mapping, configuration = folder / "mapping.toml", folder / "sink.conf"
    mode, key = ("insert", "") if job.case == "sink" else ("upsert", f"key = {list(_KEY)}")
    mapping.write_text(_MAPPING.format(job=job, mode=mode, key=key))
    configuration.write_text((_CONFIGURATION + _SINK).format(job=job, mapping=mapping))
    options = ["--config-file", str(configuration)]
    subprocess.run([*_PROGRAM, "sink", "plan", "--execute", *options], check=True, capture_output=True)
    return debezium_sink.command(job, folder, _KEY) if job.installed else [*_PROGRAM, "sink", "run", *options]


def _create_partitions_and_offsets(job: Job) -> None:
    with open_storage(StorageSettings("postgresql", job.database)).open_writer() as writer:
        for partition in range(PARTITIONS):
            writer.write(Claim(job.group, job.topic, partition, None, 0, 0), Rows(Kind.METRICS, (), ()))


@contextlib.contextmanager
def _stored_offsets(job: Job) -> Iterator[Callable[[], int]]:
    query = sa.text("SELECT coalesce(sum(next), 0) FROM kafka_offset")
    with sa.create_engine(job.database, isolation_level="AUTOCOMMIT").connect() as connection:
        yield lambda: int(connection.scalar(query) or 0)


@contextlib.contextmanager
def _committed_offsets(job: Job) -> Iterator[Callable[[], int]]:
    partitions = [TopicPartition(job.topic, partition) for partition in range(PARTITIONS)]
    reader = Consumer({"bootstrap.servers": job.servers, "group.id": job.group})
    try:
        yield lambda: sum(max(at.offset, 0) for at in reader.committed(partitions, timeout=_COMMITTED_SECONDS))
    finally:
        reader.close()


def _cpu_seconds(server: Server, url: str) -> float:
    return cpu_seconds(server.pid) + session_cpu_seconds(url)
