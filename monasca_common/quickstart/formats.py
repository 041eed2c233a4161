# SPDX-License-Identifier: Apache-2.0
"""Avro and JSON in one topic: the API writes Avro, the pipeline JSON, and a sink stores both in a separate table."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from monasca_common.kafka import TopicPartition, plugins
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.log_reading import LogReader
from monasca_common.quickstart.rows import select
from monasca_common.quickstart.services import ServiceProcess, run_command
from monasca_common.storage import row_keys

SINK = "sink run"
_TOPIC = "metrics"
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.2
_OPTIONS = """
[schema_registry]
url = {url}
subject_name_strategy = topic
auto_register = true
mixed_topics = metrics

[api]
metrics_format = avro
events_format = avro

[pipeline_evaluate]
transitions_format = avro
"""
# SQLite permits one writing process for each file, so the sink has its own file.
_SINK_OPTIONS = """\
[database]
connection = sqlite:///{database}

[sink]
mapping_file = {mapping}
"""
_MAPPING = """\
[sink_metrics]
topic = "metrics"
serializer = "avro"

[sink_metrics.columns]
name = {type = "text", from = "value.metric.name"}
time = {type = "timestamp", from = "value.metric.timestamp"}
value = {type = "double", from = "value.metric.value"}
"""


@dataclass(frozen=True, slots=True)
class FormatsSummary:
    """``avro``, ``json``: messages in the topic. ``messages``: the number of distinct message ids.
    ``rows``: rows in the sink's table."""

    avro: int
    json: int
    messages: int
    rows: int

    @property
    def good(self) -> bool:
        return self.avro > 0 and self.json > 0 and self.rows == self.messages


def configure(configuration: Path, url: str) -> Path:
    """Add the registry and the formats to the configuration; return the sink's second file."""
    folder = configuration.parent
    with configuration.open("a") as file:
        file.write(_OPTIONS.format(url=url))
    mapping, own = folder / "sink.toml", folder / "sink.conf"
    mapping.write_text(_MAPPING)
    own.write_text(_SINK_OPTIONS.format(database=_database(folder), mapping=mapping))
    return own


def create_tables(configuration: Path, own: Path) -> None:
    """Create the sink's database and table. Raises `ServiceFailed`."""
    run_command("db", "upgrade", configuration=configuration, more=own)
    run_command("sink", "plan", "--execute", configuration=configuration, more=own)


def compare(servers: str, folder: Path, sink: ServiceProcess) -> FormatsSummary:
    """Count the messages of the topic and the rows of the sink, once it has read the topic. Raises `ServiceFailed`."""
    connection = ConnectionSettings(servers)
    admin = plugins.open_admin(connection)
    partitions = [TopicPartition(_TOPIC, number) for number in range(admin.partition_counts()[_TOPIC])]
    starts, ends = admin.first_offsets(partitions), admin.end_offsets(partitions)
    kinds, ids = Counter[bool](), set[bytes]()
    for message in LogReader(connection).messages(starts, ends):
        kinds[message.value is not None and message.value[:1] == b"\0"] += 1
        ids.add(row_keys.message_key(message.headers, message.topic, message.partition, message.offset))
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (rows := _rows(folder)) < len(ids) and time.monotonic() < deadline:
        sink.check()
        time.sleep(_POLL_SECONDS)
    return FormatsSummary(kinds[True], kinds[False], len(ids), rows)


def _database(folder: Path) -> Path:
    return folder / "sink.sqlite"


def _rows(folder: Path) -> int:
    [(count,)] = select(_database(folder), "SELECT count(*) FROM sink_metrics")
    return int(count)
