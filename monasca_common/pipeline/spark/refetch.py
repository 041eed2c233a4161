# SPDX-License-Identifier: Apache-2.0
"""Reads the complete messages at single offsets, which become dead letters. Reading the key, headers and time of every
record with Spark takes more than twice as long as reading only the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import Message
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.pipeline.source.offset_store import OffsetRange
from monasca_common.pipeline.source.range_reader import RangeReader

# Reading up to this number of unneeded records takes less time than a seek.
_SEEK_BEYOND = 2_000


def refetch(settings: ConsumerSettings, partition: int, offsets: Iterable[int]) -> Iterator[Message]:
    """Yield the messages in offset order. Raises `TransportError`, for example if an offset is no longer in the log."""
    missing = sorted(offsets, reverse=True)
    reader = RangeReader(settings, {partition: missing[-1]})
    try:
        for wanted in list(_ranges(partition, missing)):
            for part in reader.read([wanted]):
                for message in part:
                    if missing and message.offset == missing[-1]:
                        missing.pop()
                        yield message
            if missing and missing[-1] < wanted.end:
                raise TransportError(
                    f"offset {missing[-1]} of {settings.topics[0]}/{partition} is no longer in the log"
                )
    finally:
        reader.close()


def _ranges(partition: int, offsets: list[int]) -> Iterator[OffsetRange]:
    """Yield ranges in ascending order that cover all of these descending offsets, without long gaps."""
    start = end = offsets[-1]
    for offset in reversed(offsets):
        if offset - end > _SEEK_BEYOND:
            yield OffsetRange(partition, start, end + 1)
            start = offset
        end = offset
    yield OffsetRange(partition, start, end + 1)
