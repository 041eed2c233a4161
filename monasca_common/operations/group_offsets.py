# SPDX-License-Identifier: Apache-2.0
"""The two places where a group's offsets are kept: beside its rows in the database, or in Kafka."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from oslo_config import cfg

from monasca_common.kafka import Admin
from monasca_common.kafka.config import KAFKA_GROUP
from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.positions import DatabasePositions, ReadPositions, differing_copies, no_database
from monasca_common.operations.offset_plan import GroupOffset
from monasca_common.storage import load_storage
from monasca_common.storage.base import Capability, Storage, StorageStatus
from monasca_common.storage.errors import SchemaMismatch, StorageError
from monasca_common.storage.settings import has_database

# A broker's name for its refusal of offsets that a stranger commits for a group with members.
_HAS_MEMBERS = "UNKNOWN_MEMBER_ID"


class GroupOffsets(Protocol):
    place: str  # "database" or "kafka"

    def read(self) -> dict[TopicPartition, GroupOffset]:
        """All that the group has."""

    def write(self, offsets: Mapping[TopicPartition, int | None], topic_ids: Mapping[TopicPartition, str]) -> None:
        """Replace these; ``None`` forgets one, where that is possible."""


class KafkaOffsets:
    """Committed offsets; Kafka itself forgets those of a topic when it is deleted."""

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
    """Those that count are in the database; Kafka's copy follows, because lag tools look at it."""

    place = "database"

    def __init__(self, storage: Storage, admin: Admin, group: str) -> None:
        self._storage = storage
        self._in_kafka = KafkaOffsets(admin, group)
        self._group = group

    def read(self) -> dict[TopicPartition, GroupOffset]:
        return {
            TopicPartition(each.topic, each.partition): GroupOffset(each.next_offset, each.topic_id)
            for each in _status(self._storage).offsets
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
                return  # one joined since it was looked for members: it reads the database, and commits what it reads
            raise TransportError(
                "the database has the new offsets, which is what counts; Kafka's copy of them, for lag tools, could "
                f"not be set: {error}. Run the same command again, or let the service commit them"
            ) from error


def differing(kept: GroupOffsets, copies: Mapping[TopicPartition, int]) -> list[str]:
    """Where Kafka's copy of a group's offsets is not what the database has, which one counts, and why."""
    if kept.place == "kafka":
        return []
    return differing_copies({partition: each.next_offset for partition, each in kept.read().items()}, copies)


def position_reader(conf: cfg.ConfigOpts, section: str = KAFKA_GROUP) -> ReadPositions:
    """Of the database of the configuration, if it names one: asked anew by each call, which raises nothing.

    ``section``: the option group of the cluster. A database has positions in the services' own, [kafka] and [kafka_…].
    """
    if section != KAFKA_GROUP and not section.startswith(f"{KAFKA_GROUP}_"):
        return no_database
    database: list[Storage] = []

    def read() -> DatabasePositions:
        try:
            if not has_database(conf):
                return no_database()
            if not database:
                database.append(load_storage(conf))
            return _stored(database[0])
        except (ConfigurationError, StorageError, ImportError) as error:
            return DatabasePositions(trouble=str(error))

    return read


def _stored(storage: Storage) -> DatabasePositions:
    if Capability.TRANSACTIONAL_OFFSETS not in storage.capabilities:
        return no_database()
    groups: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for each in _status(storage).offsets:
        groups[each.group][TopicPartition(each.topic, each.partition)] = each.next_offset
    return DatabasePositions(groups)


def _status(storage: Storage) -> StorageStatus:
    """Raises `SchemaMismatch` for a database that reports no offsets because this program cannot read them: those of
    Kafka would be mistaken for the ones that count."""
    status = storage.status()
    if not status.usable:
        raise SchemaMismatch(status.mismatch)
    return status


def find(storage: Storage | None, admin: Admin, group: str, place: str | None) -> GroupOffsets:
    """``place``: ``database`` or ``kafka``; ``None``: the database if it has any of this group.

    Raises `StorageError` for a database that is asked for and keeps none.
    """
    if place == "kafka" or storage is None:
        if place == "database":
            raise StorageError("the configuration has no [database] connection: give the file of the service that has")
        return KafkaOffsets(admin, group)
    if Capability.TRANSACTIONAL_OFFSETS not in storage.capabilities:
        if place == "database":
            raise StorageError(f"{type(storage).__name__} keeps no offsets beside its rows: they are in Kafka")
        return KafkaOffsets(admin, group)
    in_database = DatabaseOffsets(storage, admin, group)
    try:
        return in_database if place == "database" or in_database.read() else KafkaOffsets(admin, group)
    except SchemaMismatch as error:
        remedy = "or say --kept-in kafka for a group that keeps nothing in the database"
        raise SchemaMismatch(f"{error}, {remedy}") from error
