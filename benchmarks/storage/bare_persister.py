# SPDX-License-Identifier: Apache-2.0
"""A hand-written loop that consumes, parses, and stores rows and offsets in one transaction.

It stores each row exactly once while one process owns the topic. It checks only types, and ends at the first error.
"""

from __future__ import annotations

import json
import queue
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
_AHEAD = 2  # maximum number of batches between the parsing thread and the storing thread
_PATIENCE_SECONDS = 60.0

_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_TRAILER = struct.pack("!h", -1)
_pack = struct.Struct("!hi16siqidiiq").pack
_UPDATE_OFFSET = "UPDATE kafka_offset SET next = %s WHERE partition = %s AND next = %s"
_INSERT_SERIES = (
    "INSERT INTO series (id, tenant, region, name, dimensions) VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
)

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


def main(options: dict[str, Any], topic: str, url: str) -> None:
    store = _postgresql(url)
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


def _postgresql(url: str) -> Store:
    connection: psycopg.Connection[Any] = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    cursor = connection.cursor()

    def store(rows: list[Row], new: NewSeries, ends: dict[int, tuple[int, int]]) -> None:
        encoded = [
            _pack(5, 16, series, 8, time, 8, value, -1, 8, version) for series, time, value, version in sorted(rows)
        ]
        with connection.transaction():
            for partition, (start, end) in ends.items():
                cursor.execute(_UPDATE_OFFSET, (end, partition, start))
                assert cursor.rowcount == 1
            cursor.executemany(_INSERT_SERIES, new)
            with cursor.copy(b"COPY measurements FROM STDIN (FORMAT BINARY)") as stream:
                stream.write(b"".join([_HEADER, *encoded, _TRAILER]))

    return store


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
