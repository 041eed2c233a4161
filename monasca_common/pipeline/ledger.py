# SPDX-License-Identifier: Apache-2.0
"""Where a job stands, in the database: the offsets it has accounted for, moved in the transaction of its results.

Spark may run a batch again whenever it likes, and two drivers may believe to be the only one. So what is moved is only
moved from where the batch began (a compare-and-swap): of two that did the same work, one is told `Fenced`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from monasca_common.pipeline.errors import Fenced
from monasca_common.storage import fence, schema
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.tables import kafka_offset


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets from ``start`` to just before ``end`` of one partition."""

    partition: int
    start: int
    end: int

    @property
    def span(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, and for whom. ``topic_id`` tells a topic from a later one of the same name."""

    group: str
    topic: str
    topic_id: str | None


class Ledger:
    """``connection``: a SQLAlchemy URL. Holds no connection between calls.

    Every call raises `StorageUnavailable` when the database cannot do it now.
    """

    def __init__(self, connection: str) -> None:
        self._writing = schema.engine(connection, to_write=True)
        reading = schema.engine(connection)
        self._reading = reading.execution_options(
            **({"isolation_level": "REPEATABLE READ"} if reading.dialect.name == "postgresql" else {})
        )

    @property
    def is_shared(self) -> bool:
        """Whether executors on other machines can write to this database."""
        return self._writing.dialect.name == "postgresql"

    def check(self) -> None:
        """Raises `SchemaMismatch` unless the tables are those of this program."""
        with self.reading() as connection:
            schema.check(schema.revision(connection))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One moment of the database, whatever is committed meanwhile."""
        with _translated(), self._reading.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end of the block."""
        with _translated(), self._writing.begin() as connection:
            yield connection

    def next_offsets(self, source: Source) -> dict[int, int]:
        """Where to read on, of each partition that was begun. Raises `TopicMismatch`."""
        with self.reading() as connection:
            return _next_offsets(connection, source)

    def begin(self, source: Source, starts: Mapping[int, int]) -> dict[int, int]:
        """Store where partitions begin that have no offset yet; returns what is stored then, perhaps by another."""
        with self.writing() as connection:
            begun = _next_offsets(connection, source)
            for partition in sorted(starts.keys() - begun.keys()):
                row = {"consumer_group": source.group, "topic": source.topic, "partition": partition}
                with contextlib.suppress(sa.exc.IntegrityError), connection.begin_nested():
                    connection.execute(
                        kafka_offset.insert().values(**row, topic_id=source.topic_id, next=starts[partition])
                    )
            return _next_offsets(connection, source)

    @contextlib.contextmanager
    def advance(
        self, source: Source, ranges: Sequence[OffsetRange], *, are_all: bool = False
    ) -> Iterator[sa.Connection]:
        """A transaction that accounts for these ranges: what the block writes and the offsets, or neither.

        The partitions are locked from its start. Raises `Fenced` where one of them is not at the range's start, or
        where the ranges ``are_all`` that there are and a partition has been begun beside them.
        """
        with self.writing() as connection:
            for range_ in sorted(ranges):
                _lock(connection, source, range_)
            yield connection
            if are_all:
                # At the end, for whoever commits after this look finds what is written here.
                _check_no_others(connection, source, ranges)
            for range_ in sorted(ranges):
                _swap(connection, source, range_)


def _next_offsets(connection: sa.Connection, source: Source) -> dict[int, int]:
    columns = (kafka_offset.c.partition, kafka_offset.c.topic_id, kafka_offset.c.next)
    found = {}
    for partition, topic_id, next_offset in connection.execute(sa.select(*columns).where(*_of(source))):
        fence.check_topic(source.topic, topic_id, source.topic_id)
        found[partition] = next_offset
    return found


def _lock(connection: sa.Connection, source: Source, range_: OffsetRange) -> None:
    columns = (kafka_offset.c.topic_id, kafka_offset.c.next)
    where = (*_of(source), kafka_offset.c.partition == range_.partition)
    stored = connection.execute(sa.select(*columns).where(*where).with_for_update()).one_or_none()
    if stored is None:
        raise Fenced(source.topic, range_.partition, range_.start, None)
    fence.check_topic(source.topic, stored.topic_id, source.topic_id)
    if stored.next != range_.start:
        raise Fenced(source.topic, range_.partition, range_.start, stored.next)


def _swap(connection: sa.Connection, source: Source, range_: OffsetRange) -> None:
    where = (*_of(source), kafka_offset.c.partition == range_.partition, kafka_offset.c.next == range_.start)
    if connection.execute(kafka_offset.update().where(*where).values(next=range_.end)).rowcount != 1:
        raise Fenced(source.topic, range_.partition, range_.start, None)


def _check_no_others(connection: sa.Connection, source: Source, ranges: Sequence[OffsetRange]) -> None:
    stored = _next_offsets(connection, source)
    for partition in sorted(stored.keys() - {each.partition for each in ranges}):
        raise Fenced(source.topic, partition, 0, stored[partition])


def _of(source: Source) -> tuple[sa.ColumnElement[bool], ...]:
    return (kafka_offset.c.consumer_group == source.group, kafka_offset.c.topic == source.topic)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise StorageUnavailable(schema.reason(error)) from error
