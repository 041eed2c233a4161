# SPDX-License-Identifier: Apache-2.0
"""Measures a persister process that stores a backlog in Kafka as rows, observed through its stored offsets.

This package's persister and sink are the commands with default options. The Go program and Kafka Connect commit to
Kafka; the others store offsets in the database. The measurement starts when a fifth of the backlog is stored and ends
when all of it is stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from benchmarks.databases import server_version, session_cpu_seconds
from benchmarks.formats import metrics_registry
from benchmarks.job import Figures, Job, main
from benchmarks.librdkafka import PARTITIONS, consumer_options, versions
from benchmarks.process_tree import cpu_seconds
from benchmarks.storage import debezium_sink
from benchmarks.topics import AVRO
from monasca_common.storage import Claim, Kind, Rows, StorageSettings, open_storage

_ROOT = Path(__file__).parent.parent.parent
_GO_SOURCE = Path(__file__).parent / "persister_go"
_WARM_SHARE = 0.2
_LOOK_SECONDS = 0.01
_MOST_SECONDS = 300.0
_COMMITTED_SECONDS = 10.0
_STOP_SECONDS = 30.0

_CONFIGURATION = """\
[kafka]
bootstrap_servers = {job.servers}
[storage]
driver = postgresql
[database]
connection = {job.database}
[kafka_metrics]
topic = {job.topic}
group_id = {job.group}
num_processors = {job.threads}
[kafka_alarm_history]
enabled = false
"""
_SINK = """\
[kafka]
bootstrap_servers = {job.servers}
[storage]
driver = postgresql
[database]
connection = {job.database}
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
        if job.case.endswith("-avro"):
            settings, _ = stack.enter_context(metrics_registry())
            job = dataclasses.replace(job, topic=f"{job.topic}{AVRO}")
            registry = f"[schema_registry]\nurl = {settings.url}\n"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(_running(_command(job, folder, registry), folder / "log"))
        watch = _committed_offsets if job.program else _stored_offsets
        stored = stack.enter_context(watch(job))
        warm = _wait_for(server, stored, int(job.messages * _WARM_SHARE))
        began, before = time.perf_counter(), _cpu_seconds(server, job.database)
        end = _wait_for(server, stored, job.messages)
        seconds = time.perf_counter() - began
        used = _cpu_seconds(server, job.database) - before
    clients = debezium_sink.versions if job.case.endswith("-debezium") else _go_versions if job.program else versions
    found = {**clients(), **server_version(job.database)}
    rows = None if job.case.startswith("sink") else job.messages
    return Figures(end - warm, seconds, used, rows=rows, versions=found)


def _command(job: Job, folder: Path, registry: str) -> list[str]:
    if job.program and not job.case.startswith("sink"):
        _create_partitions_and_offsets(job)
        url = job.database.replace("+psycopg", "")
        options = ["-conflict"] if job.case.endswith("-conflict") else []
        return [job.program, *options, job.servers, job.topic, job.group, url]
    if job.case.endswith("-bare"):
        _create_partitions_and_offsets(job)
        given = {"options": consumer_options(job), "topic": job.topic, "url": job.database}
        return [sys.executable, "-m", "benchmarks.storage.bare_persister", json.dumps(given)]
    program = [sys.executable, "-m", "monasca_common.cli.main"]
    configuration = folder / "persister.conf"
    if job.case.startswith("sink"):
        mapping = folder / "mapping.toml"
        mode, key = ("insert", "") if job.case == "sink" else ("upsert", f"key = {list(_KEY)}")
        mapping.write_text(_MAPPING.format(job=job, mode=mode, key=key))
        configuration.write_text(_SINK.format(job=job, mapping=mapping))
        options = ["--config-file", str(configuration)]
        subprocess.run([*program, "sink", "plan", "--execute", *options], cwd=_ROOT, check=True, capture_output=True)
        if job.program:
            return debezium_sink.command(job, folder, _KEY)
        return [*program, "sink", "run", *options]
    configuration.write_text(_CONFIGURATION.format(job=job) + registry)
    return [*program, "persister", "--config-file", str(configuration)]


def _create_partitions_and_offsets(job: Job) -> None:
    with open_storage(StorageSettings("postgresql", job.database)).open_writer() as writer:
        for partition in range(PARTITIONS):
            writer.write(Claim(job.group, job.topic, partition, None, 0, 0), Rows(Kind.METRICS, (), ()))


@contextlib.contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=_ROOT, stdout=output, stderr=output)
    try:
        yield server
    except RuntimeError as error:
        raise RuntimeError(f"{error}: {log.read_text(errors='replace')[-2000:]}") from None
    finally:
        server.terminate()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            raise


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


def _wait_for(server: subprocess.Popen[bytes], stored: Callable[[], int], messages: int) -> int:
    """Wait until ``messages`` are stored, and return the stored number."""
    deadline = time.monotonic() + _MOST_SECONDS
    while (count := stored()) < messages:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{count} of {messages} were stored")
        time.sleep(_LOOK_SECONDS)
    return count


def _go_versions() -> dict[str, str]:
    lines = [line.split() for line in (_GO_SOURCE / "go.mod").read_text().splitlines()]
    return {line[0].split("/")[2]: line[1] for line in lines if len(line) == 2 and "/" in line[0]}


def _cpu_seconds(server: subprocess.Popen[bytes], url: str) -> float:
    return cpu_seconds(server.pid) + session_cpu_seconds(url)


if __name__ == "__main__":
    main(run)
