# SPDX-License-Identifier: Apache-2.0
"""Chooses the offsets of the next batch: from the stored offsets to the end of the log, limited to the size of a
batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monasca_common.pipeline.errors import RecordsLost
from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.pipeline.source.topic import Extent, SourceTopic
from monasca_common.storage.positions import first_reads


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The next batch. ``ranges``: one range for every partition with new offsets. ``behind``: the number of offsets
    that remain after these ranges. ``ended``: the partitions without a remaining backlog. ``starts``: the stored offset
    of every partition of the topic."""

    ranges: tuple[OffsetRange, ...]
    behind: int
    ended: frozenset[int]
    starts: Mapping[int, int]


def plan(topic: SourceTopic, offset_store: OffsetStore, source: Source, most: int) -> RangePlan:
    """Return the next batch of at most ``most`` offsets, but at least one offset of each partition with new offsets.
    Raises `RecordsLost`, `TopicMismatch`."""
    starts, extents = _starts_and_extents(topic, offset_store, source)
    for partition, extent in extents.items():
        _check(source, partition, starts[partition], extent)
    backlog = {partition: extent.end - starts[partition] for partition, extent in extents.items()}
    shares = share(backlog, most)
    ranges = tuple(
        OffsetRange(partition, starts[partition], starts[partition] + count)
        for partition, count in sorted(shares.items())
    )
    ended = frozenset(partition for partition, count in backlog.items() if count == shares.get(partition, 0))
    own = {partition: starts[partition] for partition in extents}
    return RangePlan(ranges, sum(backlog.values()) - sum(shares.values()), ended, own)


def share(backlog: Mapping[int, int], most: int) -> dict[int, int]:
    """Divide ``most`` offsets in proportion to the backlogs of the partitions; each partition with a backlog gets at
    least one offset."""
    behind = {partition: count for partition, count in backlog.items() if count > 0}
    total = sum(behind.values())
    if total <= most:
        return behind
    return {partition: max(1, count * most // total) for partition, count in behind.items()}


def below(next_offsets: Mapping[int, int], firsts: Mapping[int, int], most: int) -> list[OffsetRange]:
    """Return the range of up to ``most`` offsets below the next offset of each partition, but not before ``firsts``."""
    return [
        OffsetRange(partition, min(end, max(firsts.get(partition, 0), end - most)), end)
        for partition, end in sorted(next_offsets.items())
    ]


def _starts_and_extents(
    topic: SourceTopic, offset_store: OffsetStore, source: Source
) -> tuple[Mapping[int, int], Mapping[int, Extent]]:
    """Return the stored offset and the extent of each partition."""
    while True:
        starts = offset_store.next_offsets(source)
        # Read the extents after the offsets, because the log grows: an offset that another process, or the option
        # start, has stored in the meantime can be beyond an earlier end.
        extents = topic.extents()
        first = first_reads(extents, starts, topic.starts)
        if not first:
            return starts, extents
        offset_store.begin(source, first)


def _check(source: Source, partition: int, start: int, extent: Extent) -> None:
    where = f"{source.topic}/{partition}: the next offset is {start}, but the log"
    # The command resets only this partition, and never to an offset that was read, because its record would count
    # again.
    reset = f"`monasca-common offsets reset --group {source.group} --topic {source.topic}:{partition}"
    if start < extent.first:
        raise RecordsLost(
            f"{where} begins at {extent.first}: retention has removed {extent.first - start} offsets that were not "
            f"read; {reset} --to-earliest` accepts this loss and moves to the first available offset"
        )
    if start > extent.end:
        raise RecordsLost(
            f"{where} ends at {extent.end}: it was truncated, or is another topic; {reset} --to-offset {extent.end}` "
            f"accepts this loss and moves to new records"
        )
