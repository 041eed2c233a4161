# SPDX-License-Identifier: Apache-2.0
"""Stores the offsets of a job in the database, in the same transaction as its results.

Spark may repeat a batch, and two drivers of a job may run at the same time. So an offset advances only if it is still
at the start of the batch (a compare-and-swap): if two drivers compute the same batch, one of them gets `Fenced`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from monasca_common.audit.reports import HandledRange
from monasca_common.kafka.message import TopicPartition
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.source.offset_audit import OffsetAudit
from monasca_common.storage import fence
from monasca_common.storage.base import Claim
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.fence import StoredNext
from monasca_common.storage.positions import DIALECTS, StoredPositions
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds

# Long enough for a statement that merges the partials of millions of records. A driver that hangs in a transaction
# loses its locks before the next driver stops waiting for them.
SESSIONS = Bounds(statement_seconds=600.0, lock_seconds=180.0, idle_seconds=120.0)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets of one partition in [``start``, ``end``)."""

    partition: int
    start: int
    end: int

    @property
    def span(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Source:
    """A group and the topic that it reads. ``topic_id`` distinguishes a topic from a later topic with the same name."""

    group: str
    topic: str
    topic_id: str | None


class OffsetStore:
    """The stored offsets. ``connection``: a SQLAlchemy URL; each call opens a connection. ``audit`` receives the stored
    offsets and the ranges by which they advance.

    Every call raises `StorageUnavailable` while the database is unavailable.
    """

    def __init__(self, connection: str, bounds: Bounds = SESSIONS, *, audit: OffsetAudit | None = None) -> None:
        self._audit = audit
        self._writing = schema.engine(connection, to_write=True, bounds=bounds)
        reading = schema.engine(connection, bounds=bounds)
        self._reading = reading.execution_options(
            **({"isolation_level": "REPEATABLE READ"} if reading.dialect.name == "postgresql" else {})
        )

    @property
    def is_shared(self) -> bool:
        """Return whether executors on other machines can write to this database."""
        return self._writing.dialect.name == "postgresql"

    def check(self) -> None:
        """Raise `SchemaMismatch` if this program does not support the database's schema."""
        with self.reading() as connection:
            schema.check_database(connection.exec_driver_sql, connection.dialect.name)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that reads a snapshot of the database."""
        with _translated(), self._reading.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that commits at the end of the block."""
        with _translated(), self._writing.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def successive(self) -> Iterator[Callable[[], AbstractContextManager[sa.Connection]]]:
        """Yield a function that opens a transaction like `writing`. Successive transactions share one connection,
        because opening a connection takes longer than a small transaction."""
        with _translated(), self._writing.connect() as connection:

            @contextlib.contextmanager
            def writing() -> Iterator[sa.Connection]:
                with connection.begin():
                    yield connection

            yield writing

    def next_offsets(self, source: Source) -> dict[int, int]:
        """Return the next offset to read in each partition that has a stored offset. Raises `TopicMismatch`."""
        with self.reading() as connection:
            found = _positions(connection).of_topic(source.group, source.topic, source.topic_id)
        return self._reported(source, found)

    def begin(self, source: Source, starts: Mapping[int, int]) -> dict[int, int]:
        """Store the first offsets of partitions without stored offsets. Return all stored offsets, including those that
        other processes have stored."""
        with self.writing() as connection:
            positions = _positions(connection)
            first = {TopicPartition(source.topic, partition): start for partition, start in starts.items()}
            positions.begin(source.group, first, dict.fromkeys(first, source.topic_id))
            found = positions.of_topic(source.group, source.topic, source.topic_id)
        return self._reported(source, found)

    @contextlib.contextmanager
    def advance(
        self, source: Source, ranges: Sequence[OffsetRange], *, are_all: bool = False
    ) -> Iterator[sa.Connection]:
        """Open a transaction that accounts for these ranges: it commits the changes of the block together with the
        offsets.

        It locks the partitions first. Raises `Fenced` if a stored offset is not at the start of its range, or, with
        ``are_all``, if a partition without a range has a stored offset.
        """
        with self._audited(source, ranges), self.writing() as connection:
            positions = _positions(connection)
            held = _hold(positions, source, ranges)
            yield connection
            if are_all:
                # Checked at the end, because a process that commits after this check sees these changes.
                _check_no_others(positions, source, ranges)
            positions.advance(held)

    def _audited(self, source: Source, ranges: Sequence[OffsetRange]) -> AbstractContextManager[None]:
        if self._audit is None:
            return contextlib.nullcontext()
        return self._audit.accounting(
            [HandledRange(source.topic, each.partition, each.start, each.end) for each in ranges if each.span]
        )

    def _reported(self, source: Source, next_offsets: dict[int, int]) -> dict[int, int]:
        if self._audit is not None:
            self._audit.starts_at(source.topic, next_offsets)
        return next_offsets


def _positions(connection: sa.Connection) -> StoredPositions:
    return StoredPositions(connection.exec_driver_sql, DIALECTS[connection.dialect.name])


def _hold(positions: StoredPositions, source: Source, ranges: Sequence[OffsetRange]) -> dict[Claim, StoredNext]:
    """Lock the partitions of the ranges. Return the ranges as claims, each with its stored offset. Raises `Fenced`,
    `TopicMismatch`."""
    claims = [
        Claim(source.group, source.topic, each.partition, source.topic_id, each.start, each.end)
        for each in sorted(ranges)
    ]
    stored = positions.lock(source.group, [claim.topic_partition for claim in claims])
    held = {}
    for claim in claims:
        found = stored.get(claim.topic_partition)
        if found is not None:
            fence.check_topic(source.topic, found.topic_id, source.topic_id)
        if found is None or found.next_offset != claim.start:
            raise Fenced(source.topic, claim.partition, claim.start, None if found is None else found.next_offset)
        held[claim] = found
    return held


def _check_no_others(positions: StoredPositions, source: Source, ranges: Sequence[OffsetRange]) -> None:
    stored = positions.of_topic(source.group, source.topic, source.topic_id)
    for partition in sorted(stored.keys() - {each.partition for each in ranges}):
        raise Fenced(source.topic, partition, 0, stored[partition])


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise StorageUnavailable(schema.reason(error)) from error
