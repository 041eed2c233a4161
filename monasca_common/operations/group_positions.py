# SPDX-License-Identifier: Apache-2.0
"""The positions of consumer groups, which are in Kafka or in the database of a service that stores rows.

A database commits rows and positions in one transaction, so its positions are authoritative; Kafka has a copy that is
committed afterwards. Lag verdicts use the positions in Kafka for every group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from oslo_config import cfg

from monasca_common.kafka import Admin
from monasca_common.kafka.config import KAFKA_GROUP
from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.history import PartitionHistory
from monasca_common.operations.lag.verdict import LagStatus, group_lag
from monasca_common.operations.offset_plan import GroupOffset
from monasca_common.storage import load_storage
from monasca_common.storage.base import Capability, Storage, StorageStatus
from monasca_common.storage.errors import SchemaMismatch, StorageError
from monasca_common.storage.settings import has_database

_HAS_MEMBERS = "UNKNOWN_MEMBER_ID"  # a broker's error if a non-member commits offsets of an active group

_Positions = Mapping[TopicPartition, int]
_Histories = Mapping[TopicPartition, PartitionHistory]


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
                return  # a member has joined, which reads the database and commits its positions
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


@dataclass(frozen=True, slots=True)
class DatabasePositions:
    """The next offsets in a database, by group and partition. ``error``: the reason why they are unknown, or empty."""

    groups: Mapping[str, _Positions] = field(default_factory=dict)
    error: str = ""

    def place(self, group: str) -> str:
        """Return where the authoritative positions are: ``database``, ``kafka`` or ``unknown``."""
        return "unknown" if self.error else "database" if group in self.groups else "kafka"

    def differ(self, group: str, verdicts: _Histories, partition: TopicPartition | None = None) -> bool | None:
        """Return whether the verdict on a group or partition uses a position that differs from the authoritative one;
        ``None`` if unknown."""
        if self.error:
            return None
        differing = _differing(self.of(group, verdicts), _copies(verdicts))
        return bool(differing) if partition is None else partition in differing

    def of(self, group: str, verdicts: _Histories) -> dict[TopicPartition, int]:
        """Return a group's positions in the topics that have a verdict."""
        topics = {partition.topic for partition in verdicts}
        return {each: at for each, at in self.groups.get(group, {}).items() if each.topic in topics}


ReadPositions = Callable[[], DatabasePositions]


def no_database() -> DatabasePositions:
    """Return no positions, because all are in Kafka."""
    return DatabasePositions()


def position_reader(conf: cfg.ConfigOpts, section: str = KAFKA_GROUP) -> ReadPositions:
    """Return a function that reads the positions in the configured database and never raises. ``section``: the option
    group of the cluster; only [kafka] and [kafka_…] have positions in a database.
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
            return _positions(database[0])
        except (ConfigurationError, StorageError, ImportError) as error:
            return DatabasePositions(error=str(error))

    return read


def _positions(storage: Storage) -> DatabasePositions:
    if Capability.OFFSETS not in storage.capabilities:
        return no_database()
    groups: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for each in _status(storage).offsets:
        groups[each.group][TopicPartition(each.topic, each.partition)] = each.next_offset
    return DatabasePositions(groups)


def _status(storage: Storage) -> StorageStatus:
    """Return the database's status. Raises `SchemaMismatch` if this program cannot read its positions, because Kafka's
    copies must not replace them."""
    status = storage.status()
    if not status.usable:
        raise SchemaMismatch(status.mismatch)
    return status


def position_remarks(verdicts: Mapping[str, _Histories], stored: DatabasePositions) -> list[str]:
    """Return remarks on verdicts that use Kafka's copy although the database has, or might have, different positions.

    The copy of a running group is always slightly behind, so a group that is OK gets a remark only if its copy is
    ahead.
    """
    if stored.error:
        unknown = "verdicts use Kafka's offsets; it is unknown if services resume from other offsets in a database"
        return [f"{unknown}: {stored.error}"]
    remarks = []
    for group, partitions in verdicts.items():
        copies, lag = _copies(partitions), group_lag(known.lag for known in partitions.values())
        is_ok = lag.status is LagStatus.OK and not lag.is_error
        counting = {
            each: at for each, at in stored.of(group, partitions).items() if not is_ok or copies.get(each, 0) > at
        }
        if lines := differing_copies(counting, copies):
            remarks += [f"the verdict on {group} uses Kafka's copy of its offsets. {lines[0]}", *lines[1:]]
    return remarks


def differing_copies(counting: _Positions, copies: _Positions) -> list[str]:
    """Return a remark on the partitions in which Kafka's copy differs from the database, or an empty list."""
    lines = [
        f"  {partition.topic}/{partition.partition}: {at} in the database, {copies.get(partition, 'none')} in Kafka"
        for partition, at in sorted(_differing(counting, copies).items())
    ]
    why = (
        "The service resumes from the database, which commits rows and offsets in one transaction. Kafka's copy, which "
        "is committed afterwards and is read by lag tools, differs:"
    )
    return [why, *lines] if lines else []


def _differing(counting: _Positions, copies: _Positions) -> dict[TopicPartition, int]:
    return {partition: at for partition, at in counting.items() if copies.get(partition) != at}


def _copies(verdicts: _Histories) -> dict[TopicPartition, int]:
    return {partition: known.commits[-1].offset for partition, known in verdicts.items() if known.commits}
