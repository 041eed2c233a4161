# SPDX-License-Identifier: Apache-2.0
"""Metrics as they are in Kafka: of 10,000 series, every 30 seconds up to now, 280 bytes each."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.librdkafka import PARTITIONS

_SERIES = 10_000
_PER_HOST = 100
HOSTS = _SERIES // _PER_HOST
TENANT = "9f2d4c0a7b6e4d31a5c8e0f1b2a3c4d5"
_INTERVAL_MS = 30_000
_REPEATED_EVERY = 100
_REPEATED_AFTER = 40_000

_TEXT = (
    '{"metric":{"name":"disk.%s","dimensions":{"device":"vd%s%d","hostname":"%s",'
    '"service":"nova"},"timestamp":%d,"value":%s,"value_meta":null},'
    '"meta":{"tenantId":"%s","region":"RegionOne"},"creation_time":%d}'
)
_NAMES = ("total_used_mb", "space_used_perc", "inode_used_perc", "read_req_sec", "write_req_sec")


def values(count: int, *, repeats: bool) -> Iterator[tuple[int, bytes, int]]:
    """Each with its partition and its time in ms. ``repeats``: every hundredth is one that was there some seconds
    before, as when a producer was not told that it was delivered."""
    rounds = count // _SERIES + 1
    first_ms = time.time_ns() // 1_000_000 - rounds * _INTERVAL_MS
    for number in range(count):
        source = number - _REPEATED_AFTER - 1 if repeats and _is_repeated(number) else number
        turn, series = divmod(source, _SERIES)
        time_ms = first_ms + turn * _INTERVAL_MS + series
        host, kind = divmod(series, _PER_HOST)
        disk, name = divmod(kind, len(_NAMES))
        text = _TEXT % (
            _NAMES[name],
            "abcdefghij"[disk % 10],
            disk // 10,
            host_name(host),
            time_ms,
            round(source * 0.61803 % 100, 3),
            TENANT,
            time_ms // 1000 + 1,
        )
        # An agent's metrics come together, and not always to the same partition.
        yield (number // _PER_HOST + number // _SERIES) % PARTITIONS, text.encode(), time_ms


def host_name(number: int) -> str:
    return f"compute-{number:03d}.example.org"


def distinct(count: int, *, repeats: bool) -> int:
    """How many rows ``count`` of them are."""
    return count - sum(map(_is_repeated, range(count))) if repeats else count


def _is_repeated(number: int) -> bool:
    return number % _REPEATED_EVERY == _REPEATED_EVERY - 1 and number > _REPEATED_AFTER
