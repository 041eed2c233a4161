# SPDX-License-Identifier: Apache-2.0
"""Which offsets the next batch has: from what is stored to what the log holds now, no more than a batch may have."""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.pipeline.errors import RecordsLost
from monasca_common.pipeline.ledger import Ledger, OffsetRange, Source
from monasca_common.pipeline.topic_view import Extent, TopicView


def next_ranges(view: TopicView, ledger: Ledger, source: Source, most: int) -> tuple[list[OffsetRange], int]:
    """Of every partition that has something new, and how many offsets are behind these ranges.

    Raises `RecordsLost`, `TopicMismatch`.
    """
    extents = view.extents()
    starts = _starts(view, ledger, source, extents)
    for partition, extent in extents.items():
        _check(source, partition, starts[partition], extent)
    backlog = {partition: extent.end - starts[partition] for partition, extent in extents.items()}
    shares = share(backlog, most)
    ranges = [
        OffsetRange(partition, starts[partition], starts[partition] + count)
        for partition, count in sorted(shares.items())
    ]
    return ranges, sum(backlog.values()) - sum(shares.values())


def share(backlog: Mapping[int, int], most: int) -> dict[int, int]:
    """``most`` offsets, by how far each partition is behind; at least one of each that is behind at all."""
    behind = {partition: count for partition, count in backlog.items() if count > 0}
    total = sum(behind.values())
    if total <= most:
        return behind
    return {partition: max(1, count * most // total) for partition, count in behind.items()}


def below(stands: Mapping[int, int], firsts: Mapping[int, int], most: int) -> list[OffsetRange]:
    """Of each partition, ``most`` offsets up to where it ``stands``, as far as there are any from ``firsts`` on."""
    return [
        OffsetRange(partition, min(end, max(firsts.get(partition, 0), end - most)), end)
        for partition, end in sorted(stands.items())
    ]


def _starts(view: TopicView, ledger: Ledger, source: Source, extents: Mapping[int, Extent]) -> Mapping[int, int]:
    begun = ledger.next_offsets(source)
    missing = sorted(extents.keys() - begun.keys())
    if not missing:
        return begun
    # What comes to a topic that was begun is new in it: nothing of that is to be missed, wherever `start` points.
    return ledger.begin(source, dict.fromkeys(missing, 0) if begun else view.starts(missing))


def _check(source: Source, partition: int, start: int, extent: Extent) -> None:
    where = f"{source.topic}/{partition}: offset {start} is to be read next, but the log"
    # Of this partition alone, and never to what was read: it would count again.
    reset = f"`monasca-common offsets reset --group {source.group} --topic {source.topic}:{partition}"
    if start < extent.first:
        raise RecordsLost(
            f"{where} begins at {extent.first}: retention has removed {extent.first - start} offsets that were not "
            f"read; {reset} --to-earliest` moves to what is left, once that is accepted"
        )
    if start > extent.end:
        raise RecordsLost(
            f"{where} ends at {extent.end}: it was cut, or is another topic; {reset} --to-offset {extent.end}` moves "
            "to what comes from now on, once that is accepted"
        )
