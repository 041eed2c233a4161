# SPDX-License-Identifier: Apache-2.0
"""The positions of mirrors, stored in a compacted topic of the target cluster.

A copy and the position after it are written in one transaction of the target. The offsets of a consumer group could
also be part of that transaction, but brokers delete the offsets of a group without members after a week
(``offsets.retention.minutes``), and an idle partition would then be copied again from its beginning.

The key of a record contains the topic, the partition and the mirror; its value contains the position, both as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from monasca_common.kafka import Admin, ConfigurationError, Message, Record
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.models.json_text import UNREADABLE
from monasca_common.operations.log_reading import LogReader

POSITIONS_TOPIC = "monasca-mirror-positions"
TRANSACTION_SECONDS = 60.0
_PATIENCE_SECONDS = TRANSACTION_SECONDS + 30.0  # longer than brokers need to abort the transaction of a crashed mirror
_LOG = TopicPartition(POSITIONS_TOPIC, 0)
# One partition, so that all mirrors see the records in the same order. Small segments, so that little is left to read
# after compaction.
_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "16777216", "max.message.bytes": "1048588"}


@dataclass(frozen=True, slots=True)
class MirrorPosition:
    """The position of a mirror in a partition. ``start``: the first copied offset; ``next_offset``: the next offset to
    copy; both are offsets of the source. ``source_id``, ``target_id``: the topic's ids, which change if the topic is
    recreated."""

    mirror: str
    partition: TopicPartition
    start: int
    next_offset: int
    source_id: str
    target_id: str

    def record(self) -> Record:
        key = _Key(self.partition.topic, self.partition.partition, self.mirror)
        value = _Value(self.start, self.next_offset, self.source_id, self.target_id)
        return Record(msgspec.json.encode(value), key=msgspec.json.encode(key), partition=_LOG.partition)

    def withdrawn(self) -> Record:
        """Return the tombstone that removes this record."""
        return Record(None, key=self.record().key, partition=_LOG.partition)


class _Key(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    mirror: str


class _Value(msgspec.Struct, frozen=True):
    start: int
    next_offset: int
    source_id: str
    target_id: str


Positions = Mapping[tuple[str, TopicPartition], MirrorPosition]


def prepare(admin: Admin) -> None:
    """Create the topic if it is missing. Raises `ConfigurationError` if its settings would lose positions."""
    partitions = admin.partition_counts().get(POSITIONS_TOPIC)
    if partitions is None:
        admin.create_topic(POSITIONS_TOPIC, replication_factor=-1, config=_CONFIG)
        return
    policy = admin.topic_configs((POSITIONS_TOPIC,))[POSITIONS_TOPIC]["cleanup.policy"]
    if partitions != 1 or policy != "compact":
        raise ConfigurationError(
            f"topic {POSITIONS_TOPIC} of the target has {partitions} partitions and cleanup.policy={policy}: recreate "
            "it with 1 partition and compact, otherwise positions are lost and messages are copied twice"
        )


def read_positions(admin: Admin, target: ConnectionSettings) -> Positions:
    """Return the committed positions of every mirror. Raises `TransportError`.

    Read to the end of the log and wait for open transactions of other mirrors, because the newest position of this
    mirror can be after these transactions.
    """
    if POSITIONS_TOPIC not in admin.partition_counts():
        return {}
    starts, ends = admin.first_offsets([_LOG]), admin.end_offsets([_LOG], open_transactions=True)
    return positions_in(LogReader(target, patience_seconds=_PATIENCE_SECONDS).messages(starts, ends))


def positions_in(messages: Iterable[Message]) -> Positions:
    """Return the last position of each partition and mirror. Records of other programs are ignored."""
    found: dict[tuple[str, TopicPartition], MirrorPosition] = {}
    for message in messages:
        try:
            key = msgspec.json.decode(message.key or b"", type=_Key)
            partition = TopicPartition(key.topic, key.partition)
            if message.value is None:
                found.pop((key.mirror, partition), None)
                continue
            value = msgspec.json.decode(message.value, type=_Value)
        except UNREADABLE:
            continue
        found[key.mirror, partition] = MirrorPosition(
            key.mirror, partition, value.start, value.next_offset, value.source_id, value.target_id
        )
    return found
