# SPDX-License-Identifier: Apache-2.0
"""Envelopes of metrics: 10,000 series, every 30 seconds up to now, 280 bytes each."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.librdkafka import PARTITIONS

_SERIES = 10_000
_PER_HOST = 100
_TENANT = "9f2d4c0a7b6e4d31a5c8e0f1b2a3c4d5"
_INTERVAL_MS = 30_000

_TEXT = (
    '{"metric":{"name":"disk.%s","dimensions":{"device":"vd%s%d","hostname":"%s",'
    '"service":"nova"},"timestamp":%d,"value":%s,"value_meta":null},'
    '"meta":{"tenantId":"%s","region":"RegionOne"},"creation_time":%d}'
)
NAMES = ("total_used_mb", "space_used_perc", "inode_used_perc", "read_req_sec", "write_req_sec")


def values(count: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield the partition, the envelope and its time in ms."""
    rounds = count // _SERIES + 1
    first_ms = time.time_ns() // 1_000_000 - rounds * _INTERVAL_MS
    for number in range(count):
        turn, series = divmod(number, _SERIES)
        time_ms = first_ms + turn * _INTERVAL_MS + series
        host, kind = divmod(series, _PER_HOST)
        disk, name = divmod(kind, len(NAMES))
        text = _TEXT % (
            NAMES[name],
            "abcdefghij"[disk % 10],
            disk // 10,
            f"compute-{host:03d}.example.org",
            time_ms,
            round(number * 0.61803 % 100, 3),
            _TENANT,
            time_ms // 1000 + 1,
        )
        # The metrics of an agent arrive together, but not always in the same partition.
        yield (number // _PER_HOST + number // _SERIES) % PARTITIONS, text.encode(), time_ms
