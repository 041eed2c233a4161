# SPDX-License-Identifier: Apache-2.0
"""Reads the copies of a mirror and their source to compare them, message by message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

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
from monasca_common.operations.offset_plan import targets_at_time

_PATIENCE_SECONDS = 60.0


class MirrorVerification:
    """Compares the copies made by the mirror with these settings and their source.

    Raises `ConfigurationError` and `TransportError`.
    """

    def __init__(self, settings: MirrorSettings, source: Admin, target: Admin) -> None:
        self._settings = settings
        self._source = source
        self._target = target

    def ranges(self, topics: Iterable[str] = (), since_ms: int | None = None) -> list[ComparedRange]:
        """Return the ranges to compare in these topics, by default in all topics. ``since_ms``: compare only messages
        with this timestamp or a later one.

        Positions are read first, then the ends of the target, then the ends of the source. So each message that is read
        in the target is also read in the source, however fast the mirror copies.
        """
        known = self._positions(set(topics))
        partitions = list(known)
        ends = self._target.end_offsets(partitions)
        source_ends = self._source.end_offsets(partitions)
        firsts, source_firsts = self._target.first_offsets(partitions), self._source.first_offsets(partitions)
        starts, source_starts = firsts, source_firsts
        if since_ms is not None:
            starts = targets_at_time(self._target, ends, since_ms)
            source_starts = targets_at_time(self._source, source_ends, since_ms)
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
                f"mirror {name!r} has copied {'nothing' if not own else f'no topic {missing[0]!r}'}: correct the name "
                "or the topics, or run the mirror first"
            )
        return {partition: at for partition, at in own.items() if partition.topic in wanted or not wanted}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that are compacted in either cluster."""
        names = sorted(set(topics))
        configs = (self._source.topic_configs(names), self._target.topic_configs(names))
        return {name for each in configs for name, config in each.items() if "compact" in config["cleanup.policy"]}

    def compare(
        self, compared: ComparedRange, since_ms: int | None = None, *, is_compacted: bool = False
    ) -> PartitionComparison:
        compared = self._as_left_now(compared)
        partition = compared.partition
        source = _read(self._settings.source, partition, compared.source_start, compared.source_end)
        target = _read(self._settings.target, partition, compared.target_start, compared.target_end)
        if is_compacted:
            return compare_latest(compared, source, target, since_ms=since_ms, rewritten=self._rewritten)
        return compare_logs(compared, _since(source, since_ms), _since(target, since_ms))

    def _as_left_now(self, compared: ComparedRange) -> ComparedRange:
        """Return the range without messages that retention has deleted while other partitions were compared."""
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
        """Return the keys of messages after the end of the range, because compaction may have removed their earlier
        messages in the range."""
        partition = compared.partition
        end = self._source.end_offsets([partition])[partition]
        return {each.key for each in _read(self._settings.source, partition, compared.source_end, end)}


def _read(connection: ConnectionSettings, partition: TopicPartition, start: int, end: int) -> Iterator[Message]:
    reader = LogReader(connection, patience_seconds=_PATIENCE_SECONDS)
    return reader.messages({partition: start}, {partition: end})


def _since(messages: Iterable[Message], since_ms: int | None) -> Iterable[Message]:
    return messages if since_ms is None else (each for each in messages if (each.timestamp_ms or 0) >= since_ms)
