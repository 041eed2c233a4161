# SPDX-License-Identifier: Apache-2.0
"""The contract of storage, written once: what a driver stores, promises and reads.

A driver declares its capabilities; the contract's suite holds it to each, and expects the rest to fail loudly.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.errors import NotSupported


class Kind(enum.StrEnum):
    """What rows are of; each is a table, or a measurement of a time-series database."""

    METRICS = "metrics"
    ALARM_HISTORY = "alarm_history"
    LOGS = "logs"
    EVENTS = "events"


class Capability(enum.Enum):
    TRANSACTIONAL_OFFSETS = "rows and the offset that was read become visible together, or not at all"
    READS = "what is stored can be read back through a Reader"
    MANY_WRITERS = "several processes may write at once"


@dataclass(frozen=True, slots=True)
class Claim:
    """A range of one partition, accounted for wholly: offsets from ``start`` to just before ``end``.

    What no row is given for is not to be stored: it is a dead letter, a control record, or was compacted away.
    """

    group: str
    topic: str
    partition: int
    topic_id: str | None  # None: the broker does not tell; then it is not compared
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one claim, as columns of equal length in order of offset.

    ``values`` are `Measurement`, `AlarmTransition`, `LogEntry` or `Event`, as ``kind`` says. ``message_ids`` key
    the rows of every kind but metrics, whose key is (series, time).
    """

    kind: Kind
    values: Sequence[Any]
    offsets: Sequence[int]
    message_ids: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of one call; the four add up to the rows given.

    ``stored``: new. ``repeated``: the same row was there. ``conflicting``: the key was there, or twice in the call,
    with another value; the greater version was kept. ``skipped``: below the stored offset, so stored before.
    """

    stored: int = 0
    repeated: int = 0
    conflicting: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one step of pruning removed from a table; ``unit`` is ``rows`` or ``partitions``."""

    table: str
    removed: int
    unit: str


@dataclass(frozen=True, slots=True)
class StoredOffset:
    group: str
    topic: str
    partition: int
    topic_id: str | None
    next_offset: int


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """``found``: the schema's revision, ``None`` where there is none; ``wanted``: this program's. ``size_bytes``: of
    the whole database. ``partitions``: of all tables, where there are any."""

    found: str | None
    wanted: str
    size_bytes: int | None = None
    offsets: tuple[StoredOffset, ...] = ()
    partitions: int | None = None


class Writer(ABC):
    """One connection that writes; used by one thread at a time, and closed by its opener.

    Every method raises `StorageUnavailable` when the database cannot do it now.
    """

    @abstractmethod
    def next_offsets(self, group: str, partitions: Mapping[TopicPartition, str | None]) -> dict[TopicPartition, int]:
        """Where to read on, for each partition that has a stored offset. The values are the topics' ids.

        Raises `TopicMismatch`.
        """

    @abstractmethod
    def begin(
        self, group: str, starts: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, str | None]
    ) -> dict[TopicPartition, int]:
        """Store where partitions without a stored offset begin; returns what is stored then, perhaps by another."""

    @abstractmethod
    def write(self, claim: Claim, rows: Rows) -> Written:
        """Rows and the offset ``claim.end`` in one transaction, as a compare-and-swap on the stored offset.

        Where the driver has no transactional offsets: rows, at least once, overwriting by key.
        Raises `RowsRefused` (nothing was stored), `RangeBeyondNext`, `TopicMismatch`.
        """

    def reset_offsets(
        self,
        group: str,
        starts: Mapping[TopicPartition, int | None],
        topic_ids: Mapping[TopicPartition, str | None],
    ) -> dict[TopicPartition, int]:
        """Put these offsets and topic ids in place of what is stored, whatever that is, in one transaction.

        ``None`` forgets a partition. Returns what was stored before. What an operator does, not a reader: a claim that
        is under way from the former offset is skipped, or told to read again from the new one. Raises `NotSupported`
        without `Capability.TRANSACTIONAL_OFFSETS`.
        """
        raise NotSupported(f"{type(self).__name__} stores no offsets: those that count are in Kafka")

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Storage(ABC):
    """A driver: what it can do, and how to open it. Connects to nothing until asked to."""

    capabilities: frozenset[Capability]
    kinds: frozenset[Kind]

    @abstractmethod
    def open_writer(self) -> Writer:
        """Raises `StorageUnavailable`, `SchemaMismatch`, `WriterAlreadyRuns`."""

    @abstractmethod
    def open_reader(self) -> Any:
        """A `Reader`, safe to share among threads. Raises `NotSupported` without `Capability.READS`."""

    # What an operator does, by `monasca-common db`. Where the schema is not ours, it is not ours to change either.

    def upgrade(self) -> None:
        """Bring the schema to this program's. Raises `StorageUnavailable`, `SchemaMismatch` (a newer program's)."""
        raise NotSupported(f"{type(self).__name__} has no schema of this program: there is nothing to upgrade")

    def status(self) -> StorageStatus:
        """How the database stands. Raises `StorageUnavailable`."""
        raise NotSupported(f"{type(self).__name__} has no schema of this program: there is nothing to tell of it")

    def prune(self, now_ms: int) -> Iterator[Pruned]:
        """Remove what is older than its retention, in steps that are each committed, and tell of each.

        Raises `StorageUnavailable`, `SchemaMismatch`.
        """
        raise NotSupported(f"{type(self).__name__} prunes nothing: set a retention policy in the database itself")
