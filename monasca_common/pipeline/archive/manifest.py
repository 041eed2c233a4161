# SPDX-License-Identifier: Apache-2.0
"""Records the archive's files in the database, in the transaction that accounts for their offsets. A file is
*committed* with its offsets, *placed* once readers can find it, and *expired* from the time its hour is too old until
the file is removed. After a crash, the next process continues from these states.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.layout import Offsets
from monasca_common.pipeline.errors import AlreadyArchived
from monasca_common.pipeline.source.offset_store import OffsetRange, Source
from monasca_common.storage.sql.tables import archive_file


class FileState(enum.StrEnum):
    COMMITTED = "committed"
    PLACED = "placed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A row of the manifest. ``staged``: the path in the store to which the file was written before it was placed.
    ``topic_id``: the topic's id, if the row was read and the broker has ids."""

    topic: str
    hour_ms: int
    offsets: Offsets
    records: int
    size_bytes: int
    batch: str
    staged: str
    topic_id: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return layout.file_name(self.offsets, self.batch)

    @property
    def path(self) -> str:
        return f"{layout.hour_folder(self.topic, self.hour_ms)}/{self.name}"


def lock(connection: sa.Connection, source: Source) -> None:
    """Lock the topic: until the transaction ends, no other process commits its files or removes orphans. To avoid a
    deadlock, take this lock after the locks on partitions.
    """
    if connection.dialect.name == "postgresql":  # SQLite runs only one transaction at a time
        text = f"archive/{source.group}/{source.topic}".encode()
        key = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def check_new(connection: sa.Connection, source: Source, ranges: Iterable[OffsetRange]) -> None:
    """Raise `AlreadyArchived` if a file has offsets of these ranges, which means that the position was moved back."""
    table = archive_file.c
    ours = _of(source)
    if source.topic_id is not None:  # a recreated topic begins at offset 0 again
        ours += (sa.or_(table.topic_id == source.topic_id, table.topic_id.is_(None)),)
    for each in ranges:
        query = sa.select(sa.func.max(table.last_offset)).where(
            *ours,
            table.partition == each.partition,
            table.last_offset >= each.start,
            table.first_offset < each.end,
        )
        last = connection.scalar(query)
        if last is not None:
            raise AlreadyArchived(source.group, source.topic, each.partition, each.start, last)


def add(connection: sa.Connection, source: Source, files: Iterable[ArchivedFile], now_ms: int) -> None:
    """Record the files as committed."""
    rows = [
        {
            "consumer_group": source.group,
            "topic": source.topic,
            "topic_id": source.topic_id,
            "hour": file.hour_ms,
            "name": file.name,
            "partition": file.offsets.partition,
            "first_offset": file.offsets.first,
            "last_offset": file.offsets.last,
            "records": file.records,
            "bytes": file.size_bytes,
            "batch": file.batch,
            "staged": file.staged,
            "state": FileState.COMMITTED,
            "archived": now_ms,
        }
        for file in files
    ]
    if rows:
        connection.execute(archive_file.insert(), rows)


def find(connection: sa.Connection, source: Source, state: FileState) -> list[ArchivedFile]:
    """Return the files in this state, ordered by hour and name."""
    table = archive_file.c
    query = sa.select(archive_file).where(*_of(source), table.state == state).order_by(table.hour, table.name)
    return [
        ArchivedFile(
            row.topic,
            row.hour,
            Offsets(row.partition, row.first_offset, row.last_offset),
            row.records,
            row.bytes,
            row.batch,
            row.staged,
            row.topic_id,
        )
        for row in connection.execute(query)
    ]


def set_placed(connection: sa.Connection, source: Source, batches: Sequence[str]) -> None:
    """Mark the committed files of these batches as placed."""
    _change(connection, source, archive_file.c.batch.in_(batches), FileState.COMMITTED, FileState.PLACED)


def set_expired(connection: sa.Connection, source: Source, before_ms: int) -> int:
    """Mark the placed files of hours that begin before this time as expired. Return their number."""
    return _change(connection, source, archive_file.c.hour < before_ms, FileState.PLACED, FileState.EXPIRED)


def remove_expired(connection: sa.Connection, source: Source, files: Iterable[ArchivedFile]) -> None:
    """Remove the rows of these files if they are expired."""
    table = archive_file.c
    for file in files:
        key = (table.hour == file.hour_ms, table.name == file.name, table.state == FileState.EXPIRED)
        connection.execute(archive_file.delete().where(*_of(source), *key))


def _change(
    connection: sa.Connection, source: Source, which: sa.ColumnElement[bool], before: FileState, after: FileState
) -> int:
    where = (*_of(source), which, archive_file.c.state == before)
    return connection.execute(archive_file.update().where(*where).values(state=after)).rowcount


def _of(source: Source) -> tuple[sa.ColumnElement[bool], ...]:
    return (archive_file.c.consumer_group == source.group, archive_file.c.topic == source.topic)
