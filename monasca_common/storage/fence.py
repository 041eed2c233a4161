# SPDX-License-Identifier: Apache-2.0
"""Checks a claim against the stored offset, for every database that stores offsets with its rows.

The driver reads and updates the stored offset in one transaction. The update must match exactly one row that still has
the offset that was read. This compare-and-swap fences a writer that wrongly believes it owns the partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.storage.base import KINDS_BY_ID, Claim, Kind, Rows
from monasca_common.storage.errors import RangeBeyondNext, TopicMismatch


@dataclass(frozen=True, slots=True)
class StoredNext:
    """The stored offset of one partition."""

    next_offset: int
    topic_id: str | None


def check_call(claim: Claim, rows: Rows) -> None:
    """Raise `ValueError` for an inconsistent call, which is a bug in the caller."""
    count = len(rows.values)
    required = (rows.offsets,) if rows.kind is Kind.METRICS else (rows.offsets, rows.message_ids)
    lengths = [len(column) for column in (*required, *filter(None, (rows.by_id, rows.indexes)))]
    if set(lengths) != {count} or (rows.by_id and rows.kind not in KINDS_BY_ID):
        raise ValueError(
            f"{count} {rows.kind} with columns of {lengths} values: give columns of equal length, and by_id only for "
            "logs and events"
        )
    check_order(claim)
    if count and not claim.start <= rows.offsets[0] <= rows.offsets[-1] < claim.end:
        raise ValueError(
            f"offsets from {rows.offsets[0]} to {rows.offsets[-1]} in a claim from {claim.start} to {claim.end}: rows "
            "must lie within it, in order"
        )


def check_order(claim: Claim) -> None:
    """Raise `ValueError` for a claim that ends before it begins."""
    if claim.end < claim.start:
        raise ValueError(f"a claim from {claim.start} to {claim.end}: its end is before its start")


def check_topic(topic: str, stored_id: str | None, topic_id: str | None) -> None:
    """Raise `TopicMismatch` if both ids are known and differ."""
    if stored_id is not None and topic_id is not None and stored_id != topic_id:
        raise TopicMismatch(topic, stored_id, topic_id)


def check_claim(claim: Claim, stored: StoredNext) -> None:
    """Raise `TopicMismatch`, or `RangeBeyondNext` for a claim that begins beyond the stored offset."""
    check_topic(claim.topic, stored.topic_id, claim.topic_id)
    if claim.start > stored.next_offset:
        raise RangeBeyondNext(claim.topic, claim.partition, claim.start, stored.next_offset)


def first_new(claim: Claim, stored: StoredNext) -> int:
    """Return the first offset whose rows are not stored yet. Raises the errors of `check_claim`."""
    check_claim(claim, stored)
    return max(claim.start, stored.next_offset)
