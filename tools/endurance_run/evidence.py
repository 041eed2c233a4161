# SPDX-License-Identifier: Apache-2.0
"""Reads what the judgement needs: the log, the tables, the audit and the webhook's notifications."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from pyarrow import parquet

from endurance_run import load
from endurance_run.judgement import Tier, compare
from endurance_run.load import JournalEntry
from endurance_run.stack import GRACE_SECONDS, Stack
from monasca_common.kafka import Message, TopicPartition, plugins
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.log_reading import LogReader
from monasca_common.pipeline.archive import reader as archive
from monasca_common.quickstart import aggregates
from monasca_common.storage import row_keys

EXPRESSION = f"last({load.WAVE}) > {load.THRESHOLD:g}"
_HOUR_MS = 3_600_000
_TOPIC = "metrics"
_WAIT_SECONDS = 240.0
_POLL_SECONDS = 3.0
_ROWS = """
    SELECT series.name, dimensions->>'hostname', time, value FROM measurements
    JOIN series ON series.id = series_id WHERE series.name = ANY(%s)
"""
_SINK_ROWS = """
    SELECT name, host, (extract(epoch FROM time) * 1000)::bigint, value FROM sink_metrics WHERE name = ANY(%s)
"""
_AGGREGATES = """
    SELECT series.name, dimensions->>'host', time, (value_meta->>'record_count')::float FROM measurements
    JOIN series ON series.id = series_id WHERE series.name = ANY(%s)
"""
_TRANSITIONS = "SELECT metrics->0->'dimensions'->>'series', old_state, new_state, time FROM alarm_history ORDER BY time"

Key = tuple[str, str, int]


class Evidence:
    """``entries``: the acknowledged posts of the journal."""

    def __init__(self, stack: Stack, entries: Iterable[JournalEntry], seed: int) -> None:
        self._stack = stack
        self._expected: dict[Key, float] = {}
        self._wave: list[JournalEntry] = []
        self._seed = seed
        for entry in sorted(entries, key=lambda each: each.number):
            if entry.kind == "metrics":
                for metric in load.metrics(entry.number, entry.time_ms):
                    self._expected[metric["name"], metric["dimensions"]["hostname"], entry.time_ms] = metric["value"]
            else:
                self._wave.append(entry)

    def tiers(self) -> list[Tier]:
        """Return the tiers once all rows are stored, or after a time-out."""
        counted = Counter((name, host, time_ms // _HOUR_MS * _HOUR_MS) for name, host, time_ms in self._expected)
        hours = {(name + aggregates.SUFFIX, host, hour): float(n) for (name, host, hour), n in counted.items()}
        names = list(load.NAMES)
        readers: list[Callable[[], Tier]] = [
            lambda: compare("log", self._expected, self._log(self._stack.kafka.bootstrap_servers)),
            lambda: compare("mirror", self._expected, self._log(self._stack.mirror.bootstrap_servers)),
            lambda: compare("archive", self._expected, self._archive()),
            lambda: compare("persister", self._expected, self._rows(_ROWS, names)),
            lambda: compare("sink", self._expected, self._rows(_SINK_ROWS, names)),
            lambda: compare("aggregate", hours, self._rows(_AGGREGATES, [name + aggregates.SUFFIX for name in names])),
        ]
        deadline = time.monotonic() + _WAIT_SECONDS
        return [_settled(reader, deadline) for reader in readers]

    def wave(self) -> dict[str, list[tuple[int, float]]]:
        """Return (time in ms, value) of each series of the alarms."""
        waves = [load.wave(self._seed, series) for series in range(load.WAVES)]
        return {str(series): [(e.time_ms, next(values)) for e in self._wave] for series, values in enumerate(waves)}

    def transitions(self) -> dict[str, list[tuple[str, str, int]]]:
        """Return the stored transitions of each series, as (old, new, time in ms)."""
        found = defaultdict(list)
        with psycopg.connect(self._stack.url) as session:
            for series, old, new, time_ms in session.execute(_TRANSITIONS):
                found[series].append((old, new, time_ms))
        return dict(found)

    def superseded(self) -> int:
        """Return the number of notifications that were refused, and whose alarm changed before the retry."""
        with psycopg.connect(self._stack.url) as session:
            [(count,)] = session.execute("SELECT count(*) FROM notification WHERE state = 'superseded'")
        return int(count)

    def audit(self) -> list[dict[str, Any]]:
        """Return the rows of ``audit show`` when no bucket is open."""
        command = [sys.executable, "-m", "monasca_common.cli.main", "audit", "show", "-f", "json"]
        deadline = time.monotonic() + GRACE_SECONDS + _WAIT_SECONDS
        while True:
            shown = subprocess.run(
                [*command, "--config-file", str(self._stack.configuration)], capture_output=True, text=True, check=False
            )
            rows: list[dict[str, Any]] = [
                {name.lower(): value for name, value in row.items()} for row in json.loads(shown.stdout or "[]")
            ]
            if (rows and all(row["verdict"] != "OPEN" for row in rows)) or time.monotonic() > deadline:
                return rows
            time.sleep(_POLL_SECONDS)

    def _log(self, servers: str) -> Iterator[tuple[Key, float]]:
        """Yield the metrics of a cluster."""
        connection = ConnectionSettings(servers)
        admin = plugins.open_admin(connection)
        partitions = [TopicPartition(_TOPIC, number) for number in range(admin.partition_counts()[_TOPIC])]
        starts, ends = admin.first_offsets(partitions), admin.end_offsets(partitions)
        return _metrics(LogReader(connection).messages(starts, ends))

    def _archive(self) -> Iterator[tuple[Key, float]]:
        """Yield the metrics of the archive."""
        files = sorted((self._stack.folder / "archive").glob(f"topic={_TOPIC}/**/*.parquet"))
        batches = (batch for file in files for batch in parquet.ParquetFile(file).iter_batches())
        return _metrics(message for batch in batches for message in archive.messages(_TOPIC, batch))

    def _rows(self, statement: str, names: list[str]) -> Iterator[tuple[Key, float]]:
        with psycopg.connect(self._stack.url) as session:
            for name, host, time_ms, value in session.execute(statement.encode(), (names,)):
                yield (name, host, time_ms), value


def _metrics(messages: Iterable[Message]) -> Iterator[tuple[Key, float]]:
    """Yield the metrics of messages. Repeats of a message id are skipped, as by every reader."""
    ids = set[bytes]()
    for message in messages:
        key = row_keys.message_key(message.headers, message.topic, message.partition, message.offset)
        if key in ids or message.value is None:
            continue
        ids.add(key)
        metric = json.loads(message.value)["metric"]
        if metric["name"] in load.NAMES:
            yield (metric["name"], metric["dimensions"]["hostname"], int(metric["timestamp"])), metric["value"]


def _settled(read: Callable[[], Tier], deadline: float) -> Tier:
    while (tier := read()).lost and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return tier


def accepted_notifications(path: Path) -> Counter[str]:
    """Return how often each notification id was accepted."""
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(record["id"] for record in map(json.loads, lines) if record["accepted"])
