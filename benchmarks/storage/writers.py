# SPDX-License-Identifier: Apache-2.0
"""The rows that are stored, and the ways of storing them: psycopg as it is, and the writer."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from benchmarks.databases import session_cpu_seconds
from benchmarks.job import Figures, Job, Stopwatch
from monasca_common.models.rows import Measurement
from monasca_common.models.series import Series, series_id
from monasca_common.storage import Claim, Kind, Rows, StorageSettings, open_storage

BATCH = 20_000
_SERIES = 10_000
_REPEATED_EVERY = 100

_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_TRAILER = struct.pack("!h", -1)
_pack = struct.Struct("!hi16siqidiiq").pack

_COPY = b"COPY measurements FROM STDIN (FORMAT BINARY)"
_STAGE = b"CREATE TEMPORARY TABLE staged (LIKE measurements) ON COMMIT DROP"
_COPY_STAGED = b"COPY staged FROM STDIN (FORMAT BINARY)"
_MERGE = b"""
    INSERT INTO measurements AS m SELECT * FROM staged ON CONFLICT (series_id, time) DO UPDATE
    SET value = excluded.value, value_meta = excluded.value_meta, version = excluded.version
    WHERE (excluded.version, excluded.value, coalesce(excluded.value_meta::text, ''))
        > (m.version, m.value, coalesce(m.value_meta::text, ''))
"""

Batch = list[Measurement]
Store = Callable[[int, Batch], None]


def batches(count: int, *, repeats: bool = False) -> list[Batch]:
    """``count`` measurements of 10,000 series by turns, a second apart. ``repeats``: 1 % are those of the batch
    before, as when a producer was not told that they were delivered."""
    dimensions = [{"hostname": f"host-{number // 100}", "device": f"disk-{number % 100}"} for number in range(_SERIES)]
    series = [Series(series_id("t", "r", "disk.used", each), "t", "r", "disk.used", each) for each in dimensions]
    now_ms = time.time_ns() // 1_000_000
    rows = [
        Measurement(series[number * 7919 % _SERIES], now_ms + number // _SERIES * 1000, number * 0.5, None, now_ms)
        for number in range(count)
    ]
    if repeats:
        for number in range(BATCH, count, _REPEATED_EVERY):
            rows[number] = rows[number - BATCH]
    return [rows[start : start + BATCH] for start in range(0, count, BATCH)]


def figures(job: Job, store: Store, given: Sequence[Batch], *, before: Sequence[Batch]) -> Figures:
    """Store ``given`` with the clock running; all of ``before`` is there already.

    The CPU time is that of this process and of its session's in the server: what one saves the other may pay for.
    """
    for number, batch in enumerate(before):
        store(number, batch)
    server_seconds = session_cpu_seconds(job.database)
    with Stopwatch() as watch:
        for number, batch in enumerate(given, len(before)):
            store(number, batch)
    rows = len({(row.series.id, row.time_ms) for batch in [*before, *given] for row in batch})
    versions = {"psycopg": psycopg.__version__}
    cpu_seconds = watch.cpu_seconds + session_cpu_seconds(job.database) - server_seconds
    return Figures(job.messages, watch.seconds, cpu_seconds, rows=rows, versions=versions)


def first_ones(given: Sequence[Batch]) -> list[Batch]:
    """An hour earlier: what makes the series, and no key of ``given``."""
    return [[row._replace(time_ms=row.time_ms - 3_600_000) for row in given[0]]]


def writer(job: Job) -> Store:
    opened = open_storage(StorageSettings("postgresql", job.database)).open_writer()

    def store(number: int, batch: Batch) -> None:
        claim = Claim("benchmark", "metrics", 0, None, number * BATCH, number * BATCH + len(batch))
        opened.write(claim, Rows(Kind.METRICS, batch, range(claim.start, claim.end)))

    return store


def psycopg_copy(job: Job) -> Store:
    return _bare(job, _copy)


def psycopg_merge(job: Job) -> Store:
    return _bare(job, _copy_and_merge)


def _bare(job: Job, put: Callable[[psycopg.Connection[Any], Batch], None]) -> Store:
    """The least that stores rows and offset together."""
    writer(job)(0, [])  # makes the partitions, and the offset's row
    connection = psycopg.connect(job.database.replace("+psycopg", ""), autocommit=True)

    def store(number: int, batch: Batch) -> None:
        with connection.transaction():
            found = connection.execute("SELECT next FROM kafka_offset WHERE partition = 0 FOR UPDATE").fetchone()
            assert found is not None
            put(connection, batch)
            updated = connection.execute(
                "UPDATE kafka_offset SET next = %s WHERE partition = 0 AND next = %s",
                [number * BATCH + len(batch), found[0]],
            )
            assert updated.rowcount == 1

    return store


def _copy(connection: psycopg.Connection[Any], batch: Batch) -> None:
    with connection.cursor().copy(_COPY) as stream:
        stream.write(_encoded(batch))


def _copy_and_merge(connection: psycopg.Connection[Any], batch: Batch) -> None:
    connection.execute(_STAGE)
    with connection.cursor().copy(_COPY_STAGED) as stream:
        stream.write(_encoded(batch))
    connection.execute(_MERGE)


def _encoded(batch: Batch) -> bytes:
    pack = _pack
    rows = [
        pack(5, 16, series.id, 8, time_ms, 8, value, -1, 8, version) for series, time_ms, value, _, version in batch
    ]
    return b"".join([_HEADER, *rows, _TRAILER])
