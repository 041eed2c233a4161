# SPDX-License-Identifier: Apache-2.0
"""What a stored offset says to a claim: the same for every database that keeps offsets beside its rows.

The reading of the stored offset and its update are one transaction of the driver's. The update must hit exactly one
row that still has the offset that was read: this compare-and-swap is what fences off a writer that only believes it
owns the partition.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from monasca_common.storage.base import Claim, Kind, Rows
from monasca_common.storage.errors import RangeBeyondNext, TopicMismatch


@dataclass(frozen=True, slots=True)
class StoredNext:
    """What is stored of one partition."""

    next_offset: int
    topic_id: str | None


def check_call(claim: Claim, rows: Rows) -> None:
    """Raise `ValueError` for a call that makes no sense: that is its caller's bug, and no row's fault."""
    count = len(rows.values)
    keyed = rows.kind is not Kind.METRICS
    if len(rows.offsets) != count or (keyed and len(rows.message_ids) != count):
        raise ValueError(
            f"{count} {rows.kind} with {len(rows.offsets)} offsets and {len(rows.message_ids)} message ids: give "
            "columns of equal length"
        )
    if claim.end < claim.start:
        raise ValueError(f"a claim from {claim.start} to {claim.end}: its end is before its start")
    if count and not claim.start <= rows.offsets[0] <= rows.offsets[-1] < claim.end:
        raise ValueError(
            f"offsets from {rows.offsets[0]} to {rows.offsets[-1]} in a claim from {claim.start} to {claim.end}: rows "
            "must lie within it, in order"
        )


def check_topic(topic: str, stored_id: str | None, topic_id: str | None) -> None:
    """Raise `TopicMismatch` where both are known and differ."""
    if stored_id is not None and topic_id is not None and stored_id != topic_id:
        raise TopicMismatch(topic, stored_id, topic_id)


def first_to_store(claim: Claim, rows: Rows, stored: StoredNext) -> int:
    """The position of the first row that is not stored yet. Raises `TopicMismatch`, `RangeBeyondNext`."""
    check_topic(claim.topic, stored.topic_id, claim.topic_id)
    if claim.start > stored.next_offset:
        raise RangeBeyondNext(claim.topic, claim.partition, claim.start, stored.next_offset)
    return bisect_left(rows.offsets, stored.next_offset)
