# SPDX-License-Identifier: Apache-2.0
"""The positions of consumer groups, which are stored in Kafka or in the database of a service that stores rows.

A database commits rows and positions in one transaction, so its positions are authoritative; Kafka has a copy that is
committed afterwards. Lag verdicts use the positions in Kafka for every group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from monasca_common.kafka import Admin
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.offset_plan import GroupOffset
from monasca_common.storage.base import Capability, Storage
from monasca_common.storage.errors import SchemaMismatch, StorageError

_HAS_MEMBERS = "UNKNOWN_MEMBER_ID"  # a broker's error if a non-member commits offsets of an active group


class GroupOffsets(Protocol):
    """The positions of one group."""

    place: str  # "database" or "kafka"

    def read(self) -> dict[TopicPartition, GroupOffset]:
        """Return all positions of the group."""

    def write(self, offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[TopicPartition, str]) -> None:
        """Replace these positions; ``None`` deletes a position, if the store supports this."""


class KafkaOffsets:
    """Committed offsets in Kafka, which deletes the offsets of a deleted topic."""

    place = "kafka"

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin = admin
        self._group = group

    def read(self) -> dict[TopicPartition, GroupOffset]:
        return {partition: GroupOffset(offset) for partition, offset in self._admin.group_offsets(self._group).items()}

    def write(self, offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[TopicPartition, str]) -> None:
        known = {partition: offset for partition, offset in offsets.items() if offset is not None}
        if known:
            self._admin.alter_group_offsets(self._group, known)


class DatabaseOffsets:
    """Positions in the database. A write also updates Kafka's copy, which lag tools read."""

    place = "database"

    def __init__(self, storage: Storage, admin: Admin, group: str) -> None:
        self._storage = storage
        self._in_kafka = KafkaOffsets(admin, group)
        self._group = group

    def read(self) -> dict[TopicPartition, GroupOffset]:
        """Raises `SchemaMismatch` if this program cannot read the positions, because Kafka's copies must not replace
        them."""
        status = self._storage.status()
        if not status.usable:
            raise SchemaMismatch(status.mismatch)
        return {
            TopicPartition(each.topic, each.partition): GroupOffset(each.next_offset, each.topic_id)
            for each in status.offsets
            if each.group == self._group
        }

    def write(self, offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[TopicPartition, str]) -> None:
        ids = {partition: topic_ids.get(partition) for partition in offsets}
        with self._storage.open_writer() as writer:
            writer.reset_offsets(self._group, offsets, ids)
        try:
            self._in_kafka.write(offsets, topic_ids)
        except TransportError as error:
            if error.name == _HAS_MEMBERS:
                return  # a new member reads the database and commits its positions
            raise TransportError(
                "the database has the new offsets, from which the service resumes, but Kafka's copy for lag tools was "
                f"not updated: {error}. Run the command again, or let the service commit them"
            ) from error


def find(storage: Storage | None, admin: Admin, group: str, place: str | None) -> GroupOffsets:
    """Return the group's positions. ``place``: ``database``, ``kafka``, or ``None`` for the database if it has any.

    Raises `StorageError` if ``database`` is requested and stores no positions.
    """
    has_offsets = storage is not None and Capability.OFFSETS in storage.capabilities
    if place == "database" and storage is None:
        raise StorageError("the configuration has no [database] connection: use the file of the service that has one")
    if place == "database" and not has_offsets:
        raise StorageError(f"{type(storage).__name__} stores no offsets with its rows: they are in Kafka")
    if place == "kafka" or storage is None or not has_offsets:
        return KafkaOffsets(admin, group)
    in_database = DatabaseOffsets(storage, admin, group)
    try:
        return in_database if place == "database" or in_database.read() else KafkaOffsets(admin, group)
    except SchemaMismatch as error:
        remedy = "or use --kept-in kafka for a group without positions in the database"
        raise SchemaMismatch(f"{error}, {remedy}") from error
