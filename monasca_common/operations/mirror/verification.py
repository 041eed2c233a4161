# SPDX-License-Identifier: Apache-2.0
"""Reads the copies of a mirror and their source to compare them, message by message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monasca_common.kafka import Admin, ConfigurationError, Message
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.mirror.comparison import ComparedPartition, PartitionComparison, compare_logs
from monasca_common.operations.mirror.positions import MirrorPosition, read_positions
from monasca_common.operations.mirror.settings import MirrorSettings
from monasca_common.operations.offset_plan import targets_at_time

_PATIENCE_SECONDS = 60.0
_COMPACTED = (
    "its topic is compacted, and each cluster removes messages at different times: name the other topics with --topic"
)
_RECREATED = "its topic was deleted and recreated since it was copied: run the mirror first"


class MirrorVerification:
    """Compares the copies of the mirror that has these settings with their source.

    Raises `ConfigurationError` and `TransportError`.
    """

    def __init__(self, settings: MirrorSettings, source: Admin, target: Admin) -> None:
        self._settings = settings
        self._source = source
        self._target = target

    def positions(self, topics: Iterable[str] = ()) -> list[MirrorPosition]:
        """Return the positions of the mirror in these topics, by default in all topics that it copies."""
        name, wanted = self._settings.name, set(topics)
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
        return [at for partition, at in sorted(own.items()) if partition.topic in wanted or not wanted]

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that are compacted in either cluster."""
        names = sorted(set(topics))
        configs = (self._source.topic_configs(names), self._target.topic_configs(names))
        return {name for each in configs for name, config in each.items() if "compact" in config["cleanup.policy"]}

    def compare(
        self, position: MirrorPosition, since_ms: int | None = None, *, is_compacted: bool = False
    ) -> PartitionComparison:
        """Compare a partition. ``since_ms``: compare only messages with this timestamp or a later one.

        The end of the target is read after the position, and the end of the source after the end of the target.
        Therefore, each message that is read in the target is also read in the source, regardless of the mirror's speed.
        """
        partition = position.partition
        if is_compacted:
            return PartitionComparison(partition, not_compared=_COMPACTED)
        found = (admin.topic_ids([partition.topic], 10.0) for admin in (self._source, self._target))
        if [ids.get(partition.topic) for ids in found] != [position.source_id, position.target_id]:
            return PartitionComparison(partition, not_compared=_RECREATED)
        ends, source_ends = self._target.end_offsets([partition]), self._source.end_offsets([partition])
        firsts, source_firsts = self._target.first_offsets([partition]), self._source.first_offsets([partition])
        compared = ComparedPartition(
            partition,
            position.next_offset,
            source_lost_its_beginning=source_firsts[partition] > position.start,
            target_lost_its_beginning=firsts[partition] > 0,
        )
        starts, source_starts = firsts, {partition: max(source_firsts[partition], position.start)}
        if since_ms is not None:
            starts = targets_at_time(self._target, ends, since_ms)
            at_time = targets_at_time(self._source, source_ends, since_ms)
            source_starts = {partition: max(at_time[partition], position.start)}
        source = _read(self._settings.source, source_starts, source_ends, since_ms)
        return compare_logs(compared, source, _read(self._settings.target, starts, ends, since_ms))


def _read(
    connection: ConnectionSettings,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    since_ms: int | None,
) -> Iterable[Message]:
    messages = LogReader(connection, patience_seconds=_PATIENCE_SECONDS).messages(starts, ends)
    return messages if since_ms is None else (each for each in messages if (each.timestamp_ms or 0) >= since_ms)
