# SPDX-License-Identifier: Apache-2.0
"""The common part of the writers of SQLite and PostgreSQL: the fenced transaction, refused times, cached series."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import TopicPartition
from monasca_common.models.rows import AlarmTransition, Event, LogEntry
from monasca_common.models.series import Series
from monasca_common.storage import fence, retention
from monasca_common.storage.base import Claim, Kind, Rows, TopicIds, Writer
from monasca_common.storage.errors import RowsRefused, StorageError, StorageUnavailable
from monasca_common.storage.positions import Dialect, StoredPositions
from monasca_common.storage.refusal import find_refused
from monasca_common.storage.settings import StorageSettings

_MAX_KNOWN_SERIES = 1_000_000  # this number uses 90 MB: 16 bytes and an entry in a set for each series


class FencedTransaction(NamedTuple):
    """An open transaction. ``connection``: a connection of psycopg or sqlite3. ``first_offset``: rows below it are
    stored."""

    connection: Any
    first_offset: int

    def new_rows(self, rows: Rows) -> tuple[Rows, int]:
        """Return the rows that are not stored yet, and the number of preceding rows, which are stored."""
        first = bisect_left(rows.offsets, self.first_offset)
        return rows.part(first), first


class SqlWriter(Writer):
    dialect: ClassVar[Dialect]

    def __init__(self, settings: StorageSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._known: set[bytes] = set()  # the cached series of the generation in the next line
        self._generation = 0
        self._closed = False

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """Yield a connection with a transaction that commits at the end of the block."""

    @contextlib.contextmanager
    def _positions(self) -> Iterator[StoredPositions]:
        with self._transaction() as connection:
            yield StoredPositions(connection.execute, self.dialect)

    def next_offsets(self, group: str, partitions: TopicIds) -> dict[TopicPartition, int]:
        with self._positions() as positions:
            return positions.next_offsets(group, partitions)

    def begin(self, group: str, starts: Mapping[TopicPartition, int], topic_ids: TopicIds) -> dict[TopicPartition, int]:
        with self._positions() as positions:
            return positions.begin(group, starts, topic_ids)

    def accounted(self, claim: Claim) -> None:
        fence.check_order(claim)
        with self._positions() as positions:
            positions.accounted(claim)

    @contextlib.contextmanager
    def fenced(self, claim: Claim) -> Iterator[FencedTransaction]:
        """Run the block in a transaction that stores the offset ``claim.end`` at its end, by the same compare-and-swap
        as `write`. The block writes rows of the claim from ``first_offset`` on. Raises the errors of `write`, except
        `RowsRefused`; the block handles errors that its rows cause."""
        fence.check_order(claim)
        with self._transaction() as connection, self._advancing(connection, claim) as transaction:
            yield transaction
        fail_point("storage.after_commit")

    @contextlib.contextmanager
    def _advancing(self, connection: Any, claim: Claim) -> Iterator[FencedTransaction]:
        """Run the block in the connection's transaction, between the read of the stored offset and its update."""
        positions = StoredPositions(connection.execute, self.dialect)
        stored = positions.hold(claim)
        yield FencedTransaction(connection, fence.first_new(claim, stored))
        fail_point("storage.in_transaction")
        positions.advance({claim: stored})

    def reset_offsets(
        self, group: str, starts: Mapping[TopicPartition, int | None], topic_ids: TopicIds
    ) -> dict[TopicPartition, int]:
        with self._positions() as positions:
            return positions.reset(group, starts, topic_ids)

    def _check_times(self, rows: Rows, first: int) -> Sequence[int]:
        """Return the rows' times. Raises `RowsRefused` for times outside the retention. ``first``: the position of the
        first row."""
        times = times_of(rows)
        allowed = retention.window(self._settings, rows.kind, self._clock.time_ms())
        if reasons := retention.refused(times, allowed):
            raise RowsRefused(reasons, first=first)
        return times

    def _new_series(self, generation: int, rows: Rows, ids: set[bytes]) -> list[Series]:
        """Return the series of the rows that have one of these ids and are not in the cache."""
        if generation != self._generation:
            self._generation = generation
            self._known.clear()
        new = ids - self._known
        if not new:
            return []
        found = {value.series.id: value.series for value in rows.values if value.series.id in new}
        return [found[each] for each in sorted(found)]

    def _remember(self, series: Sequence[Series]) -> None:
        # This is called only after the commit, because measurements of a cached series that was rolled back would have
        # no series.
        if len(self._known) + len(series) > _MAX_KNOWN_SERIES:
            self._known.clear()
        self._known.update(each.id for each in series)


def refusal(rows: Rows, first: int, trial: Callable[[Rows], str | None], *, cause: str, database: str) -> StorageError:
    """Return the error for refused rows, with the reason of each. ``trial``: see `find_refused`, with a part of the
    rows."""
    reasons = find_refused(len(rows.values), lambda start, stop: trial(rows.part(start, stop)))
    if not reasons:
        return StorageUnavailable(f"{database}: a batch was refused, although no row was refused by itself: {cause}")
    return RowsRefused(reasons, first=first)


# The kinds of rows other than metrics, each with the type of its rows.
_KEYED: Mapping[Kind, type[Any]] = {Kind.ALARM_HISTORY: AlarmTransition, Kind.LOGS: LogEntry, Kind.EVENTS: Event}
#: The columns of tables whose rows are keyed by (time, message_id), by kind, which is also the name of the table.
KEYED_COLUMNS = {kind: ("time", "message_id", *row._fields[1:]) for kind, row in _KEYED.items()}


def times_of(rows: Rows) -> list[int]:
    time_index = 1 if rows.kind is Kind.METRICS else 0
    return list(map(itemgetter(time_index), rows.values))


def keyed_rows(rows: Rows) -> list[tuple[Any, ...]]:
    """Return rows of ``(time_ms, message_id, …)``, in the order of `KEYED_COLUMNS`."""
    return [(value[0], message_id, *value[1:]) for value, message_id in zip(rows.values, rows.message_ids, strict=True)]
