# SPDX-License-Identifier: Apache-2.0
"""The stored offsets: read under a lock, advanced as a compare-and-swap."""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage import fence
from monasca_common.storage.base import Claim
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.fence import StoredNext
from monasca_common.storage.postgresql.connection import BoundedConnection

_WHICH = b" WHERE consumer_group = %s AND topic = %s AND partition = %s"
SELECT_NEXT = b"SELECT next, topic_id FROM kafka_offset" + _WHICH
LOCK_NEXT = SELECT_NEXT + b" FOR UPDATE"
INSERT_NEXT = (
    b"INSERT INTO kafka_offset (consumer_group, topic, partition, topic_id, next) VALUES (%s, %s, %s, %s, %s) "
    b"ON CONFLICT DO NOTHING"
)
PUT_NEXT = (
    b"INSERT INTO kafka_offset (consumer_group, topic, partition, topic_id, next) VALUES (%s, %s, %s, %s, %s) "
    b"ON CONFLICT (consumer_group, topic, partition) DO UPDATE SET topic_id = excluded.topic_id, next = excluded.next"
)
DELETE_NEXT = b"DELETE FROM kafka_offset" + _WHICH
UPDATE_NEXT = b"UPDATE kafka_offset SET next = %s, topic_id = coalesce(topic_id, %s)" + _WHICH + b" AND next = %s"


def lock(connection: BoundedConnection, claim: Claim) -> StoredNext:
    """What is stored, or ``claim.start`` where nothing is; nobody else changes it until this transaction ends."""
    key = (claim.group, claim.topic, claim.partition)
    row = connection.execute(LOCK_NEXT, key).fetchone()
    if row is None:
        connection.execute(INSERT_NEXT, (*key, claim.topic_id, claim.start))
        row = connection.execute(LOCK_NEXT, key).fetchone()
    if row is None:
        raise StorageUnavailable(f"the stored offset of {claim.topic}/{claim.partition} was removed just now")
    return StoredNext(*row)


def advance(connection: BoundedConnection, claim: Claim, stored: StoredNext) -> None:
    """Store ``claim.end``, unless the offset is no longer what it was: then nothing of this transaction may stay."""
    if claim.end <= stored.next_offset:
        return
    updated = connection.execute(
        UPDATE_NEXT, (claim.end, claim.topic_id, claim.group, claim.topic, claim.partition, stored.next_offset)
    )
    if updated.rowcount != 1:
        raise StorageUnavailable(
            f"the stored offset of {claim.topic}/{claim.partition} changed within a transaction, of which nothing is "
            "stored"
        )


def insert(
    connection: BoundedConnection,
    group: str,
    starts: Mapping[TopicPartition, int],
    topic_ids: Mapping[TopicPartition, str | None],
) -> None:
    """Those that are missing; in one order, so that two who do so at once wait for each other and no more."""
    for partition in sorted(starts):
        connection.execute(INSERT_NEXT, (group, *partition, topic_ids.get(partition), starts[partition]))


def select(
    connection: BoundedConnection, group: str, partitions: Mapping[TopicPartition, str | None]
) -> dict[TopicPartition, int]:
    """Raises `TopicMismatch`."""
    stored = {}
    for partition, topic_id in partitions.items():
        row = connection.execute(SELECT_NEXT, (group, *partition)).fetchone()
        if row is not None:
            fence.check_topic(partition.topic, row[1], topic_id)
            stored[partition] = int(row[0])
    return stored


def reset(
    connection: BoundedConnection,
    group: str,
    starts: Mapping[TopicPartition, int | None],
    topic_ids: Mapping[TopicPartition, str | None],
) -> dict[TopicPartition, int]:
    """Those that were stored; waits for the transactions that write on from them."""
    before = {}
    for partition in sorted(starts):
        key, offset = (group, *partition), starts[partition]
        row = connection.execute(LOCK_NEXT, key).fetchone()
        if row is not None:
            before[partition] = int(row[0])
        if offset is None:
            connection.execute(DELETE_NEXT, key)
        else:
            connection.execute(PUT_NEXT, (*key, topic_ids.get(partition), offset))
    return before
