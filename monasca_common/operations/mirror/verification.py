# SPDX-License-Identifier: Apache-2.0
"""Reads what a mirror has copied, and its source, to compare them: all of it, or samples.

A sample is a span of timestamps. Where it begins and ends in a log is the first message that is not older, and a mirror
keeps the order of a partition: so both clusters have the same messages between these two, though their offsets differ.
Of these the ones of the span itself are compared, as whole logs are. That message is searched among messages, because a
broker's own look-up by time also finds the markers of transactions, which have the time of the copy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin, ConfigurationError, Message
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.mirror.comparison import (
    ComparedRange,
    PartitionComparison,
    compare_latest,
    compare_logs,
)
from monasca_common.operations.mirror.positions import MirrorPosition, read_positions
from monasca_common.operations.mirror.settings import MirrorSettings

_PATIENCE_SECONDS = 60.0
_SPANS = 5  # of one partition; each costs two readings of either cluster
_LEAST_IN_SPAN = 20
_MOST_PER_MESSAGE = 50  # offsets that may be read for each that is wanted, where timestamps are not in order
_PER_MESSAGE = (
    20  # offsets around an edge that are read for each that is wanted, because timestamps are not quite in order
)
_PROBES = 16  # of a search, each round of which opens a consumer

_Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How much of each partition: so many messages, or this share of them."""

    messages: int = 0
    share: float = 0.0

    def of(self, offsets: int) -> int:
        return self.messages or math.ceil(offsets * self.share)


class MirrorVerification:
    """What the mirror of these settings copied, against its source. Raises `ConfigurationError`, `TransportError`."""

    def __init__(self, settings: MirrorSettings, source: Admin, target: Admin) -> None:
        self._settings = settings
        self._source = source
        self._target = target

    def topics(self, wanted: Iterable[str] = ()) -> set[str]:
        """Those that the mirror has copied; of these, or all."""
        return {partition.topic for partition in self._positions(set(wanted))}

    def ranges(self, topics: Iterable[str] = (), since_ms: int | None = None) -> list[ComparedRange]:
        """Of these topics, or all. ``since_ms``: only messages whose timestamps are not older.

        The ends are taken one after the other: what is copied, the target, the source. So each message that is read in
        the target is also read in the source, however fast the mirror copies meanwhile.
        """
        known = self._positions(set(topics))
        partitions = list(known)
        ends = self._target.end_offsets(partitions)
        source_ends = self._source.end_offsets(partitions)
        firsts, source_firsts = self._target.first_offsets(partitions), self._source.first_offsets(partitions)
        starts = _starts(self._target, firsts, ends, since_ms)
        source_starts = _starts(self._source, source_firsts, source_ends, since_ms)
        return [
            ComparedRange(
                partition,
                max(source_starts[partition], position.start),
                source_ends[partition],
                starts[partition],
                ends[partition],
                position.next_offset,
                source_lost_its_beginning=source_firsts[partition] > position.start,
                target_lost_its_beginning=firsts[partition] > 0,
            )
            for partition, position in sorted(known.items())
        ]

    def _positions(self, wanted: set[str]) -> dict[TopicPartition, MirrorPosition]:
        name = self._settings.name
        everything = read_positions(self._target, self._settings.target)
        counts = self._target.partition_counts()
        there = self._source.partition_counts()
        own = {
            partition: position
            for (mirror, partition), position in everything.items()
            if mirror == name and partition.topic in counts and partition.topic in there
        }
        missing = sorted(wanted - {partition.topic for partition in own})
        if missing or not own:
            raise ConfigurationError(
                f"mirror {name!r} has copied {'nothing' if not own else f'no topic {missing[0]!r}'}: correct name or "
                "topics, or run it first"
            )
        return {partition: at for partition, at in own.items() if partition.topic in wanted or not wanted}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Those of which a cluster deletes messages in the middle."""
        names = sorted(set(topics))
        configs = (self._source.topic_configs(names), self._target.topic_configs(names))
        return {name for each in configs for name, config in each.items() if "compact" in config["cleanup.policy"]}

    def compare(
        self, compared: ComparedRange, since_ms: int | None = None, *, is_compacted: bool = False
    ) -> PartitionComparison:
        """All of it."""
        compared = self._as_left_now(compared)
        partition = compared.partition
        source = _read(self._settings.source, partition, compared.source_start, compared.source_end)
        target = _read(self._settings.target, partition, compared.target_start, compared.target_end)
        if is_compacted:
            return compare_latest(compared, source, target, since_ms=since_ms, rewritten=self._rewritten)
        return compare_logs(compared, _between(source, since_ms), _between(target, since_ms))

    def _as_left_now(self, compared: ComparedRange) -> ComparedRange:
        """Without what retention has deleted since the range was made, while others were compared."""
        partition = compared.partition
        first = self._source.first_offsets([partition])[partition]
        target_first = self._target.first_offsets([partition])[partition]
        return replace(
            compared,
            source_start=max(compared.source_start, first),
            target_start=max(compared.target_start, target_first),
            source_lost_its_beginning=compared.source_lost_its_beginning or first > compared.source_start,
            target_lost_its_beginning=compared.target_lost_its_beginning or target_first > compared.target_start,
        )

    def _rewritten(self, compared: ComparedRange) -> set[bytes | None]:
        """Keys that the source got a message of since its end was looked at, so that the one before may be gone."""
        partition = compared.partition
        end = self._source.end_offsets([partition])[partition]
        return {each.key for each in _read(self._settings.source, partition, compared.source_end, end)}

    def sample(
        self, compared: ComparedRange, size: SampleSize, draw: random.Random, since_ms: int | None = None
    ) -> PartitionComparison:
        """Some of it, at random places; all where that is not more."""
        compared = self._as_left_now(compared)
        start, end = compared.source_start, min(compared.copied, compared.source_end)
        count = size.of(max(0, end - start))
        length = max(_LEAST_IN_SPAN, math.ceil(count / _SPANS))
        places = max(0, end - start) // length
        if count >= end - start or places < 2:
            return self.compare(compared, since_ms)
        chosen = sorted(draw.sample(range(places), min(math.ceil(count / length), places)))
        found = PartitionComparison(compared.partition, unseen=end - start)
        edges = self._times(compared.partition, [start + place * length for place in chosen], length, end)
        for from_ms, until_ms in edges:
            part = self._span(compared, from_ms, until_ms, length * _PER_MESSAGE)
            if _offsets(part) > 2 * length * _MOST_PER_MESSAGE:
                continue  # some timestamps are far from those of their neighbours
            found.unseen = max(0, found.unseen - (part.source_end - part.source_start))
            found.add(self._compared_span(part, max(from_ms, since_ms or from_ms), until_ms))
        if not found.source and not found.target:
            found.not_compared = "its timestamps are in no order, so no sample is found in both clusters: compare all"
        return found

    def _times(
        self, partition: TopicPartition, offsets: Sequence[int], length: int, end: int
    ) -> Iterator[tuple[int, int | None]]:
        """For each of these offsets, the time there and the time so many offsets behind; ``None``: there is nothing."""
        edges = sorted({edge for offset in offsets for edge in (offset, offset + length) if edge < end})
        times: dict[int, int] = {}
        reader = LogReader(self._settings.source, patience_seconds=_PATIENCE_SECONDS)
        for message in reader.at({partition: edges}, {partition: end}):
            for edge in edges:
                if edge <= message.offset and edge not in times:
                    times[edge] = message.timestamp_ms or 0
        for offset in offsets:
            if offset in times:
                until_ms = times.get(offset + length)
                yield times[offset], None if until_ms is None else max(until_ms, times[offset] + 1)

    def _span(self, compared: ComparedRange, since_ms: int, until_ms: int | None, around: int) -> ComparedRange:
        """Where these times are in both logs. ``around``: see `_first_not_older`."""

        def edges(connection: ConnectionSettings, start: int, end: int) -> tuple[int, int]:
            def search(time_ms: int) -> int:
                return _first_not_older(connection, compared.partition, time_ms, start, end, around)

            return search(since_ms), end if until_ms is None else search(until_ms)

        source_start, source_end = edges(self._settings.source, compared.source_start, compared.source_end)
        target_start, target_end = edges(self._settings.target, compared.target_start, compared.target_end)
        return replace(
            compared,
            source_start=source_start,
            source_end=source_end,
            target_start=target_start,
            target_end=target_end,
            source_lost_its_beginning=compared.source_lost_its_beginning and source_start == compared.source_start,
            target_lost_its_beginning=compared.target_lost_its_beginning and target_start == compared.target_start,
        )

    def _compared_span(self, part: ComparedRange, since_ms: int, until_ms: int | None) -> PartitionComparison:
        source = _read(self._settings.source, part.partition, part.source_start, part.source_end)
        target = _read(self._settings.target, part.partition, part.target_start, part.target_end)
        return compare_logs(part, _between(source, since_ms, until_ms), _between(target, since_ms, until_ms))


def _starts(
    admin: Admin, firsts: dict[TopicPartition, int], ends: dict[TopicPartition, int], since_ms: int | None
) -> dict[TopicPartition, int]:
    if since_ms is None:
        return firsts
    found = admin.offsets_for_times(dict.fromkeys(firsts, since_ms))
    return {partition: ends[partition] if offset is None else offset for partition, offset in found.items()}


def _first_not_older(
    connection: ConnectionSettings, partition: TopicPartition, time_ms: int, start: int, end: int, around: int
) -> int:
    """The offset of the first message that is not older; ``end`` if each is. ``around``: how many offsets before and
    after the place found are read, because timestamps there may not be in order."""
    reader = LogReader(connection, patience_seconds=_PATIENCE_SECONDS)
    low, high = start, end
    while high - low > around:
        probes = list(range(low, high, math.ceil((high - low) / _PROBES)))
        messages = list(reader.at({partition: probes}, {partition: end}))
        upper = min([high, *(each.offset for each in messages if (each.timestamp_ms or 0) >= time_ms)])
        lower = max([low, *(each.offset for each in messages if each.offset < upper)])
        if (lower, upper) == (low, high):
            break
        low, high = lower, upper
    messages_there = _read(connection, partition, max(start, low - around), min(end, high + around))
    return next((each.offset for each in messages_there if (each.timestamp_ms or 0) >= time_ms), high)


def _read(connection: ConnectionSettings, partition: TopicPartition, start: int, end: int) -> Iterator[Message]:
    reader = LogReader(connection, patience_seconds=_PATIENCE_SECONDS)
    return reader.messages({partition: start}, {partition: end})


def _between(messages: Iterable[Message], since_ms: int | None, until_ms: int | None = None) -> Iterator[Message]:
    since, until = -math.inf if since_ms is None else since_ms, math.inf if until_ms is None else until_ms
    return (message for message in messages if since <= (message.timestamp_ms or 0) < until)


def _offsets(part: ComparedRange) -> int:
    return part.source_end - part.source_start + part.target_end - part.target_start
