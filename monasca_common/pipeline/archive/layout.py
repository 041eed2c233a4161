# SPDX-License-Identifier: Apache-2.0
"""Names of the folders and files of an archive.

::

    <location>/topic=metrics/date=2026-01-31/hour=6/p00003-000000000000120000-000000000000129999-<batch>.parquet
    <location>/_staging/topic=metrics/<batch>/<task attempt>-<number>.staged

The folders are named like partitions of Hive and Spark, so every Parquet reader derives topic, date and hour from them.
All readers parse the hour as a number, because it has no leading zero. Staged files are hidden in two ways: most
readers ignore names that begin with ``_``, and other readers search for ``.parquet``. A file's name contains its
partition and its first and last offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

HOUR_MS = 3_600_000
STAGING = "_staging"
STAGED = ".staged"
"""The suffix of a file that is not placed yet."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of the records in one file; ``last`` is included."""

    partition: int
    first: int
    last: int


def topic_folder(topic: str) -> str:
    return f"topic={topic}"


def hour_folder(topic: str, hour_ms: int) -> str:
    """Return the folder of one hour. ``hour_ms``: the start of the hour, up to the year 9999."""
    start = datetime.fromtimestamp(hour_ms // 1000, UTC)
    return f"{topic_folder(topic)}/date={start.year:04}-{start:%m-%d}/hour={start.hour}"


def hour_of(folder: str) -> int | None:
    """Return the start of the hour, in ms, of a folder such as ``date=2026-01-31/hour=6``."""
    try:
        start = datetime.strptime(f"{folder}+0000", "date=%Y-%m-%d/hour=%H%z")
    except ValueError:
        return None
    return int(start.timestamp()) * 1000


def file_name(offsets: Offsets, batch: str) -> str:
    """Return the name of a file. Names sort by offset. The name includes the batch, because a recreated topic repeats
    its offsets."""
    return f"p{offsets.partition:05}-{offsets.first:018}-{offsets.last:018}-{batch}.parquet"


def staging_folder(topic: str, batch: str | None = None) -> str:
    """Return the hidden folder of one batch, or of all batches."""
    folder = f"{STAGING}/{topic_folder(topic)}"
    return folder if batch is None else f"{folder}/{batch}"
