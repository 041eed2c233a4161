# SPDX-License-Identifier: Apache-2.0
"""Measures the stages of a batch, and the age of each partition's newest record at the end of the batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from monasca_common.kafka.clock import Clock
from monasca_common.pipeline.source.offset_store import OffsetRange


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a partition. ``seconds``: the age (by event time) of the newest record in the last batch, or 0."""

    topic: str
    partition: int
    seconds: float


class StageSeconds:
    """The duration of each stage of one batch. Durations of a repeated stage are added."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = self._clock.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._clock.monotonic() - began


class EventTimeLags:
    """The lags of the partitions of one topic, batch by batch."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._seen: set[int] = set()

    def after(
        self, ranges: Sequence[OffsetRange], newest_ms: Mapping[int, float], now_ms: int
    ) -> tuple[PartitionLag, ...]:
        """Return the known lags after a batch of ``ranges``. The lag is 0 for a partition of an earlier batch without
        new offsets, and unknown for a range without a record in ``newest_ms``."""
        read = {each.partition for each in ranges}
        found = dict.fromkeys(self._seen - read, 0.0)
        found |= {each: max(0.0, (now_ms - newest_ms[each]) / 1000) for each in read if each in newest_ms}
        self._seen |= read
        return tuple(PartitionLag(self._topic, partition, lag) for partition, lag in sorted(found.items()))
