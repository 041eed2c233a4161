# SPDX-License-Identifier: Apache-2.0
"""The contract of storage drivers.

A driver declares its capabilities. The contract tests check each capability, and check that calls raise an error if the
capability is missing.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from monasca_common.kafka.message import TopicPartition
from monasca_common.storage.batch_rows import RowColumns
from monasca_common.storage.errors import NotSupported


class Kind(enum.StrEnum):
    """The kinds of rows; each is a table, or a measurement of a time-series database."""

    METRICS = "metrics"
    ALARM_HISTORY = "alarm_history"
    LOGS = "logs"
    EVENTS = "events"


#: Topic ids by partition; ``None``: not reported by the broker, so not compared.
TopicIds = Mapping[TopicPartition, str | None]

#: The kinds whose rows may be identified only by their message id (`Rows.by_id`).
KINDS_BY_ID = frozenset({Kind.LOGS, Kind.EVENTS})


class Capability(enum.Enum):
    TRANSACTIONAL_OFFSETS = "rows and their offset become visible together, or not at all"
    OFFSETS = "offsets are stored in a SQL database, and each change is compared with the stored offset"
    READS = "stored rows can be read through a SqlReader"
    MANY_WRITERS = "several processes write faster than one"


@dataclass(frozen=True, slots=True)
class Claim:
    """A range of one partition that a call accounts for, from offset ``start`` (inclusive) to ``end`` (exclusive).

    An offset without a row belongs to a dead letter, a control record or a compacted message.
    """

    group: str
    topic: str
    partition: int
    topic_id: str | None  # None: not reported by the broker, so not compared
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Rows(RowColumns):
    """Rows of one claim, as columns of equal length in order of offset.

    ``values`` are `Measurement`, `AlarmTransition`, `LogEntry` or `Event`, depending on ``kind``. ``message_ids`` are
    the keys of rows of every kind except metrics, whose key is (series, time); see `row_keys.row_id`. ``indexes``: see
    `RowColumns`.

    ``by_id``: whether a log or event is identified only by its message id, because each attempt to send it has a
    different time; empty if no row is identified in this way. If several such rows have the same id, the first stored
    row is kept, with its time."""

    kind: Kind
    values: Sequence[Any]
    offsets: Sequence[int]
    message_ids: Sequence[bytes] = ()
    by_id: Sequence[bool] = ()
    indexes: Sequence[int] = ()

    def columns(self) -> Sequence[Sequence[Any]]:
        return self.values, self.offsets, self.message_ids, self.by_id, self.indexes

    def of(self, columns: Iterable[Sequence[Any]]) -> Rows:
        return Rows(self.kind, *columns)


@dataclass(frozen=True, slots=True)
class Written:
    """The outcomes of the rows of one call; the four counts add up to their number.

    ``stored``: new rows. ``repeated``: existing rows. ``conflicting``: rows whose key existed, or occurred twice in the
    call, with a different value; the greater version was kept. ``skipped``: already stored, below the stored offset.
    """

    stored: int = 0
    repeated: int = 0
    conflicting: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of one step of pruning a table; ``unit`` is ``rows`` or ``partitions``."""

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
    """The state of the database. ``found``: the schema's revision, or ``None`` if there is no schema. ``wanted``: the
    revision that this program requires. ``usable``: whether this program may run on it, even if a newer program created
    the schema. ``refusal``: the reason why `Storage.upgrade` refuses the database, or ``""`` if it does not.
    """

    found: str | None
    wanted: str
    offsets: tuple[StoredOffset, ...] = ()
    usable: bool = False
    refusal: str = ""

    @property
    def mismatch(self) -> str:
        """The reason why this program may not run on an unusable database, and the remedy."""
        return self.refusal or (
            f"the database schema has revision {self.found or 'none'}, and this program needs {self.wanted}: run "
            "`monasca-common db upgrade`"
        )


class Writer(ABC):
    """A connection for writing. Only one thread at a time may use it, and its opener closes it.

    Every method raises `StorageUnavailable` while the database is unavailable.
    """

    @abstractmethod
    def next_offsets(self, group: str, partitions: TopicIds) -> dict[TopicPartition, int]:
        """Return the stored offsets of the partitions that have one. Raises `TopicMismatch`."""

    @abstractmethod
    def begin(self, group: str, starts: Mapping[TopicPartition, int], topic_ids: TopicIds) -> dict[TopicPartition, int]:
        """Store the start offset of each partition that has no stored offset. Return the offsets that are then stored,
        possibly by another process."""

    @abstractmethod
    def write(self, claim: Claim, rows: Rows) -> Written:
        """Store rows and the offset ``claim.end`` in one transaction, with a compare-and-swap on the stored offset.

        A driver without transactional offsets stores rows at least once, and overwrites rows with the same key.
        Raises `RowsRefused` (nothing was stored), `RangeBeyondNext`, `TopicMismatch`.
        """

    @abstractmethod
    def accounted(self, claim: Claim) -> None:
        """Store the offset ``claim.end`` without rows, by the same compare-and-swap, for acknowledged dead letters,
        control records and compacted messages.

        A claim below the stored offset changes nothing, so the call may be repeated. Without a stored offset, the
        partition starts with the claim, as in `write`. A driver without transactional offsets does nothing.
        Raises `RangeBeyondNext`, `TopicMismatch`.
        """

    def reset_offsets(
        self, group: str, starts: Mapping[TopicPartition, int | None], topic_ids: TopicIds
    ) -> dict[TopicPartition, int]:
        """Replace the stored offsets and topic ids in one transaction, without a comparison.

        ``None`` removes a partition's offset. Return the former offsets. Only an operator may request this: a
        concurrent claim from the former offset is skipped, or its reader resumes at the new offset. Raises
        `NotSupported` without `Capability.OFFSETS`.
        """
        raise NotSupported(f"{type(self).__name__} stores no offsets; they are in Kafka")

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Storage(ABC):
    """A driver. The constructor does not connect."""

    capabilities: frozenset[Capability]
    kinds: frozenset[Kind]

    @abstractmethod
    def open_writer(self) -> Writer:
        """Open a writer. Raises `StorageUnavailable`, `SchemaMismatch`."""

    def open_reader(self) -> Any:
        """Open a `SqlReader`, or an object with its methods. Raises `NotSupported` without `Capability.READS`."""
        raise NotSupported(f"{type(self).__name__} does not read: choose sqlite or postgresql for an API with reads")

    # The `monasca-common db` commands call these methods. They do not change schemas of other programs.

    def upgrade(self) -> None:
        """Upgrade the schema to this program's revision. Raises `StorageUnavailable`, and `SchemaMismatch` if a newer
        program created the schema."""
        raise NotSupported(f"{type(self).__name__} has no schema that this program manages, so it needs no upgrade")

    def status(self) -> StorageStatus:
        """Return the state of the database. Raises `StorageUnavailable`."""
        raise NotSupported(f"{type(self).__name__} has no schema that this program manages, so it has no status")

    def prune(self, now_ms: int) -> Iterator[Pruned]:
        """Remove rows older than their retention, in steps that each commit, and yield the result of each step.

        Raises `StorageUnavailable`, `SchemaMismatch`.
        """
        raise NotSupported(f"{type(self).__name__} does not prune: set a retention policy in the database itself")
