# SPDX-License-Identifier: Apache-2.0
"""Writes changes of users' tables in the transaction that stores their offset. Every identifier is quoted.

On PostgreSQL, rows are copied directly while all keys are new, otherwise through a temporary table. On SQLite, each row
has its own statement.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
from sqlalchemy.dialects import sqlite

from monasca_common.storage.base import Claim, Writer
from monasca_common.storage.batch_rows import RowOrigin
from monasca_common.storage.errors import RowsRefused, StorageUnavailable
from monasca_common.storage.refusal import find_refused
from monasca_common.storage.sql.writer import SqlWriter
from monasca_common.storage.tables.rows import StoredTable, TableChanges, TopicChanges, Values

_quote = sqlite.dialect().identifier_preparer.quote_identifier  # PostgreSQL quotes in the same way
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_MERGES = 16  # batches to merge after a failed copy, which costs less than one batch; a successful copy halves the time
_MOST_TRIALS = 1000  # maximum number of trials of rows together with the rows before them, up to the whole batch
_PLAN = "run `monasca-common sink plan`"


class _KeyTaken(Exception):
    """A row that was copied as new already exists."""


class _RowRefused(Exception):
    """The database refuses a row, for the reason in the text."""


class _RowNeedsAnother(_RowRefused):
    """A row refers to a row that does not exist, or does not exist yet."""


class _Undone(Exception):
    """Ends a trial, whose transaction is rolled back."""


class Applied(NamedTuple):
    """The outcomes of the rows of a transaction. ``repeated``: an earlier row with the same key is kept. ``replaced``:
    a later row of the same batch has the same key. ``deleted``: deleted existing rows. ``skipped``: already stored."""

    stored: int = 0
    repeated: int = 0
    replaced: int = 0
    deleted: int = 0
    skipped: int = 0


class TableStatements:
    """The statements for one table. ``number``: its position among the tables of a topic. ``places``: the positions of
    the statements' columns in the table; the first ``key_count`` columns are the key."""

    def __init__(self, table: StoredTable, dialect: str, number: int) -> None:
        given = [column.name for column in table.columns]
        columns = [*table.key, *(name for name in given if name not in table.key)]
        names, key, name = _joined(columns), _joined(table.key), _quote(table.name)
        staged, keys = f"pg_temp.sink_staged_{number}", f"pg_temp.sink_staged_keys_{number}"
        marks = ", ".join("?" * len(columns))
        source = f"SELECT {names} FROM {staged}" if dialect == "postgresql" else f"VALUES ({marks})"
        updates = ", ".join(f"{_quote(each)} = excluded.{_quote(each)}" for each in columns[len(table.key) :])
        self.keeps_first = table.keeps_first
        action = "NOTHING" if self.keeps_first or not updates else f"UPDATE SET {updates}"
        # Created in each transaction, because another topic or a change of the table needs other columns.
        make = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
        self.insert = f"INSERT INTO {name} ({names}) {source} ON CONFLICT ({key}) DO {action}"
        # Fails without the unique index that ON CONFLICT needs. COPY would store the rows of a key several times.
        self.check_key = f"EXPLAIN INSERT INTO {name} ({key}) SELECT {key} FROM {name} ON CONFLICT ({key}) DO NOTHING"
        self.copy = f"COPY {name} ({names}) FROM STDIN"
        self.stage = make.format(staged, names, name), f"COPY {staged} ({names}) FROM STDIN"
        self.stage_keys = make.format(keys, key, name), f"COPY {keys} ({key}) FROM STDIN"
        self.delete_staged = f"DELETE FROM {name} WHERE ({key}) IN (SELECT {key} FROM {keys})"
        # Without the table, SQLite reads the quoted name of a missing column as a text.
        self.delete = f"DELETE FROM {name} WHERE {' AND '.join(f'{name}.{_quote(each)} = ?' for each in table.key)}"
        self.places, self.key_count = list(map(given.index, columns)), len(table.key)


def _joined(names: Sequence[str]) -> str:
    return ", ".join(map(_quote, names))


def storing(by_topic: Mapping[str, TablesWriter]) -> Callable[[Writer, Claim, TopicChanges], Applied]:
    """Return a function for a `BatchHandler` that stores the changes of each topic."""

    def store(writer: Writer, claim: Claim, changes: TopicChanges) -> Applied:
        assert isinstance(writer, SqlWriter)
        return by_topic[claim.topic].write(writer, claim, changes)

    return store


class TablesWriter:
    """Writes the changes of a topic's tables. ``describe``: returns the reason why the tables do not fit the mapping,
    or ``""`` if they do."""

    def __init__(self, tables: Sequence[StoredTable], dialect: str, describe: Callable[[], str]) -> None:
        self._statements = [TableStatements(each, dialect, number) for number, each in enumerate(tables)]
        self._is_postgresql = dialect == "postgresql"
        self._store: Any = _store_postgresql if self._is_postgresql else _store_sqlite
        self._describe = describe
        self._merges_left = 0  # the number of batches until a batch is copied as if all its keys were new

    def write(self, writer: SqlWriter, claim: Claim, changes: TopicChanges) -> Applied:
        """Store the changes and the offset. Raises the errors of `SqlWriter.fenced`, and `RowsRefused`."""
        try:
            applied = self._attempt(writer, claim, changes, merge=self._merges_left > 0)
            self._merges_left = max(0, self._merges_left - 1)
            return applied
        except _KeyTaken:
            self._merges_left = _MERGES
            return self.write(writer, claim, changes)
        except _RowRefused as error:
            raise self._refusal(writer, claim, changes, str(error)) from error

    def _refusal(self, writer: SqlWriter, claim: Claim, changes: TopicChanges, cause: str) -> RowsRefused:
        if misfit := self._describe():
            raise StorageUnavailable(f"{misfit}: {_PLAN}")
        count, stored = len(changes), sum(len(each.stored) for each in changes.tables)
        left_out: set[RowOrigin] = set()
        waiting: set[str] = set()  # the reasons of rows that refer to others
        trials = iter(range(_MOST_TRIALS))

        def tried(chosen: TopicChanges) -> str | None:
            try:
                self._attempt(writer, claim, chosen, merge=True, trial=True)
            except _RowRefused as error:
                if isinstance(error, _RowNeedsAnother):
                    waiting.add(str(error))
                return str(error)
            except _Undone:
                pass
            return None

        def deleting(start: int, stop: int) -> str | None:
            return tried(changes.positions(stored + start, stored + stop))

        def storing(start: int, stop: int) -> str | None:
            chosen = changes.positions(start, stop).without(left_out).tables
            tables = [replace(one, deleted=other.deleted) for one, other in zip(chosen, changes.tables, strict=True)]
            return tried(TopicChanges(tuple(tables)))

        def in_order(start: int, stop: int) -> str | None:
            if next(trials, None) is None:
                return next((alone[each] for each in range(start, stop) if each in alone), None)
            reason = storing(0, stop)
            if reason is not None and stop == start + 1:
                left_out.add(changes.origin(start))
            return reason

        if refused := find_refused(count - stored, deleting):
            return RowsRefused(refused, first=stored)
        refused = alone = find_refused(stored, storing)
        if not alone or not waiting.isdisjoint(alone.values()):
            # Rows conflict with each other, for example in another unique index, or refer to other rows of the batch,
            # so each row is tried together with the rows before it.
            refused = find_refused(stored, in_order)
        if refused:
            return RowsRefused(refused)
        raise StorageUnavailable(f"the database refused a batch, but now accepts it: {cause}")

    def _attempt(
        self, writer: SqlWriter, claim: Claim, changes: TopicChanges, *, merge: bool, trial: bool = False
    ) -> Applied:
        outcomes = [Applied()]
        with writer.fenced(claim) as (connection, first_offset):
            new = changes if first_offset == claim.start else changes.between(first_offset, claim.end)
            for statements, each, rest in zip(self._statements, changes.tables, new.tables, strict=True):
                stored, deleted = self._store(connection, statements, *_reduced(statements, rest), merge=merge)
                others = len(rest.stored) - stored
                repeated, replaced = (others, 0) if statements.keeps_first else (0, others)
                skipped = len(each.stored) - len(rest.stored)
                outcomes.append(Applied(stored, repeated, replaced, deleted, skipped))
            if self._is_postgresql:
                _check_deferred(connection)
            if trial:
                raise _Undone
        return Applied(*map(sum, zip(*outcomes, strict=True)))


def _reduced(statements: TableStatements, changes: TableChanges) -> tuple[Values, Values]:
    """Return the statements' columns of the rows to store, one row for each key, and the keys to delete first."""
    rows, deleted = changes.stored, changes.deleted
    values = [rows.values[place] for place in statements.places]
    keys = list(zip(*values[: statements.key_count], strict=True))
    if not len(deleted) and len(set(keys)) == len(keys):
        return values, ()
    after = dict(zip(zip(*deleted.values, strict=True), deleted.offsets, strict=True))
    positions = range(len(keys))[:: -1 if statements.keeps_first else 1]
    kept = {keys[position]: position for position in positions}  # the last position of each key
    chosen = [position for key, position in kept.items() if rows.offsets[position] > after.get(key, -1)]
    return [[column[position] for position in chosen] for column in values], list(zip(*after, strict=True))


def _store_sqlite(
    connection: sqlite3.Connection, statements: TableStatements, rows: Values, keys: Values, *, merge: bool
) -> tuple[int, int]:
    """Return how many rows were stored, and how many were deleted."""
    from monasca_common.storage.sqlite.connection import ROW_ERRORS

    try:
        deleted = connection.executemany(statements.delete, zip(*keys, strict=True)).rowcount
        return connection.executemany(statements.insert, sorted(zip(*rows, strict=True))).rowcount, deleted
    except ROW_ERRORS as error:
        raise _RowRefused(f"the database refuses it: {error}") from error
    except sqlite3.OperationalError as error:
        if any(text in str(error) for text in ("no such table", "column", "ON CONFLICT")):
            raise StorageUnavailable(f"{error}: {_PLAN}") from error
        raise


def _store_postgresql(
    connection: Any, statements: TableStatements, rows: Values, keys: Values, *, merge: bool
) -> tuple[int, int]:
    with _errors_of_postgresql(merge=merge):
        deleted = 0
        if keys:
            _copy(connection, *statements.stage_keys, keys)
            deleted = connection.execute(statements.delete_staged).rowcount
        if not rows[0]:
            return 0, deleted
        if not merge:
            _copy(connection, statements.check_key, statements.copy, rows)
            return len(rows[0]), deleted
        _copy(connection, *statements.stage, rows)
        return connection.execute(statements.insert).rowcount, deleted


def _check_deferred(connection: Any) -> None:
    """Check deferred constraints and triggers here, because an error at the commit names no rows."""
    with _errors_of_postgresql(merge=True):
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")


@contextlib.contextmanager
def _errors_of_postgresql(*, merge: bool) -> Iterator[None]:
    from psycopg import errors

    from monasca_common.storage.postgresql.connection import ROW_ERRORS, is_of_a_row, reason

    misfits = errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidColumnReference, errors.GeneratedAlways
    try:
        yield
    except (*misfits, errors.WrongObjectType) as error:
        raise StorageUnavailable(f"{error.diag.message_primary}: {_PLAN}") from error
    except ROW_ERRORS as error:
        if isinstance(error, errors.UniqueViolation) and not merge:
            raise _KeyTaken from error
        if is_of_a_row(error) or isinstance(error, errors.CardinalityViolation):  # keys that the index treats as equal
            kind = _RowNeedsAnother if isinstance(error, errors.ForeignKeyViolation) else _RowRefused
            raise kind(reason(error)) from error
        raise


def _copy(connection: Any, prepare: str, statement: str, rows: Values) -> None:
    """Copy rows, sorted by key, which comes first, so that concurrent writers do not deadlock."""
    connection.execute(prepare)
    lines = sorted(map("\t".join, zip(*map(_texts, rows), strict=True)))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write("\n".join(lines) + "\n")


def _texts(column: Sequence[Any]) -> Sequence[str]:
    """Return the values in the text format of COPY."""
    kinds = set(map(type, column))
    if type(None) in kinds:
        texts = iter(_texts([value for value in column if value is not None]))
        return ["\\N" if value is None else next(texts) for value in column]
    if kinds == {str}:
        joined = "".join(column)
        if any(sign in joined for sign in "\\\t\n\r"):
            return [value.translate(_ESCAPES) for value in column]
        return column
    if kinds == {bytes}:
        return ["\\\\x" + value.hex() for value in column]
    if kinds == {bool}:
        return ["t" if value else "f" for value in column]
    return orjson.dumps(column)[1:-1].decode().split(",")  # finite numbers; `repr` takes ten times as long
