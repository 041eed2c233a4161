# SPDX-License-Identifier: Apache-2.0
"""Loops as one would write them by hand for speed: consume, parse, store rows and offsets in one transaction.

Exactly once, for one process that alone owns the topic, from its beginning, with partitions and offsets made before.
They check nothing but types, and end with the first message that is none and with the first error of the database.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.librdkafka import PARTITIONS
from monasca_common.models.series import series_id

BATCH = 20_000
_AHEAD = 2  # batches between the thread that parses and the one that stores
_PATIENCE_SECONDS = 60.0

_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_TRAILER = struct.pack("!h", -1)
_pack = struct.Struct("!hi16siqidiiq").pack
_UPDATE_OFFSET = "UPDATE kafka_offset SET next = {0} WHERE partition = {0} AND next = {0}"
_INSERT_SERIES = "INSERT INTO series (id, tenant, region, name, dimensions) VALUES ({}) ON CONFLICT DO NOTHING"
_REPLACE = """
    ON CONFLICT (series_id, time) DO UPDATE
    SET value = excluded.value, value_meta = excluded.value_meta, version = excluded.version
    WHERE excluded.version > measurements.version
"""

Row = tuple[bytes, int, float, int]
NewSeries = list[tuple[bytes, str, str, str, str]]
Store = Callable[[list[Row], NewSeries, dict[int, tuple[int, int]]], None]


class _Metric(msgspec.Struct, gc=False):
    name: str
    timestamp: int
    value: float
    dimensions: msgspec.Raw


class _Envelope(msgspec.Struct, gc=False):
    metric: _Metric
    meta: msgspec.Raw
    creation_time: int


def main(options: dict[str, Any], topic: str, url: str, case: str) -> None:
    store = _sqlite(url) if url.startswith("sqlite") else _postgresql(url, merge="conflict" in case)
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    batches: queue.Queue[tuple[Any, ...]] = queue.Queue(_AHEAD)
    threading.Thread(target=_parse_all, args=(consumer, batches), daemon=True).start()
    while True:
        store(*batches.get(timeout=_PATIENCE_SECONDS))


def _parse_all(consumer: Consumer, batches: queue.Queue[tuple[Any, ...]]) -> None:
    decode = msgspec.json.Decoder(_Envelope).decode
    known: dict[tuple[str, bytes, bytes], bytes] = {}
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        messages = consumer.consume(BATCH, 0.1)
        rows: list[Row] = []
        new: NewSeries = []
        for message in messages:
            envelope = decode(message.value())
            metric = envelope.metric
            key = (metric.name, bytes(metric.dimensions), bytes(envelope.meta))
            series = known.get(key)
            if series is None:
                meta, dimensions = json.loads(key[2]), json.loads(key[1])
                series = known[key] = series_id(meta["tenantId"], meta["region"], metric.name, dimensions)
                new.append((series, meta["tenantId"], meta["region"], metric.name, json.dumps(dimensions)))
            rows.append((series, metric.timestamp, metric.value, envelope.creation_time * 1000))
        if messages:
            ends = {message.partition(): message.offset() + 1 for message in messages}
            batches.put((rows, new, {partition: (offsets[partition], end) for partition, end in ends.items()}))
            offsets |= ends


def _postgresql(url: str, *, merge: bool) -> Store:
    connection: psycopg.Connection[Any] = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    cursor = connection.cursor()
    if merge:
        cursor.execute("CREATE TEMPORARY TABLE staged (LIKE measurements) ON COMMIT DELETE ROWS")
    table = "staged" if merge else "measurements"

    def store(rows: list[Row], new: NewSeries, ends: dict[int, tuple[int, int]]) -> None:
        if merge:  # the last of each key in this batch: one statement must not meet it twice
            rows = list({row[:2]: row for row in rows}.values())
        encoded = [
            _pack(5, 16, series, 8, time, 8, value, -1, 8, version) for series, time, value, version in sorted(rows)
        ]
        with connection.transaction():
            for partition, (start, end) in ends.items():
                cursor.execute(_UPDATE_OFFSET.format("%s").encode(), (end, partition, start))
                assert cursor.rowcount == 1
            cursor.executemany(_INSERT_SERIES.format("%s, %s, %s, %s, %s").encode(), new)
            with cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as stream:
                stream.write(b"".join([_HEADER, *encoded, _TRAILER]))
            if merge:
                cursor.execute(f"INSERT INTO measurements SELECT * FROM staged {_REPLACE}".encode())

    return store


def _sqlite(url: str) -> Store:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "wal_autocheckpoint=10000"):
        connection.execute(f"PRAGMA {pragma}")
    insert_row = f"INSERT INTO measurements (series_id, time, value, version) VALUES (?, ?, ?, ?) {_REPLACE}"

    def store(rows: list[Row], new: NewSeries, ends: dict[int, tuple[int, int]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for partition, (start, end) in ends.items():
            assert connection.execute(_UPDATE_OFFSET.format("?"), (end, partition, start)).rowcount == 1
        connection.executemany(_INSERT_SERIES.format("?, ?, ?, ?, ?"), new)
        connection.executemany(insert_row, sorted(rows))
        connection.execute("COMMIT")

    return store


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
