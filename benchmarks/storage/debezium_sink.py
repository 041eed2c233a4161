# SPDX-License-Identifier: Apache-2.0
"""Kafka Connect with Debezium's JDBC sink, in the fastest configuration found.

It writes the columns of the sink's mapping to the same table, in one task; two tasks are slower on two cores. The
converter reads only the fields of `_SCHEMA`, and one transform flattens them. Batches are larger than by default, are
reduced to one row per key like ours, and are written as one statement with arrays, which is faster than
``reWriteBatchedInserts``.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import sqlalchemy as sa

from benchmarks.job import Job
from monasca_common.devbroker.java import find_java

_BATCH = 10_000
_COMMIT_MS = 100  # the measurement observes the committed offsets


def _struct(name: str, *fields: dict[str, object]) -> dict[str, object]:
    return {"type": "struct", "field": name, "fields": fields}


def _field(name: str, kind: str = "string") -> dict[str, object]:
    return {"type": kind, "field": name}


_SCHEMA = _struct(
    "envelope",
    _struct(
        "metric",
        _field("name"),
        _struct("dimensions", _field("device"), _field("hostname")),
        _field("timestamp", "int64"),
        _field("value", "double"),
    ),
    _struct("meta", _field("tenantId")),
)


def command(job: Job, folder: Path, key: tuple[str, ...]) -> list[str]:
    """Write the configuration to ``folder``, and return the command. ``key``: the key columns."""
    jars = Path(job.installed)  # of `connect-runtime` and `slf4j-simple`, and the connector's archive
    [archive] = jars.glob("*.tar.gz")
    with tarfile.open(archive) as plugin:
        plugin.extractall(folder / "plugins", filter="data")
    url = sa.make_url(job.database)
    worker = {
        "bootstrap.servers": job.servers,
        "listeners": "http://127.0.0.1:0",
        "plugin.path": folder / "plugins",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": _COMMIT_MS,
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schema.content": json.dumps(_SCHEMA),
    }
    connector = {
        "name": job.group,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": job.threads,
        "topics": job.topic,
        "consumer.override.group.id": job.group,
        "consumer.override.max.poll.records": _BATCH,
        "transforms": "flatten",
        "transforms.flatten.type": "org.apache.kafka.connect.transforms.Flatten$Value",
        "transforms.flatten.delimiter": "_",
        "connection.url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "connection.username": url.username,
        "connection.password": url.password or "",
        "collection.name.format": "sink_rows",
        "quote.identifiers": "true",
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": ",".join(key),
        "batch.size": _BATCH,
        "use.reduction.buffer": "true",
        "dialect.postgres.unnest.insert.enabled": "true",
    }
    files = _properties(folder / "worker.properties", worker), _properties(folder / "sink.properties", connector)
    program = "org.apache.kafka.connect.cli.ConnectStandalone"
    return [find_java(), "-Xms256M", "-Xmx2G", "-cp", f"{jars}/*", program, *files]


def _properties(file: Path, options: dict[str, object]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    return str(file)
