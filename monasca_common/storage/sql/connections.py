# SPDX-License-Identifier: Apache-2.0
"""Connections for reads: pooled, limited in time, with translated errors.

PostgreSQL cancels its own statement; if the server itself hangs, `BoundedConnection` ends the wait. SQLite calls,
between its instructions, a function that may interrupt the statement.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc

from monasca_common.storage.errors import (
    LockTimeout,
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.queries import UNHEX

_SQLITE_STEPS = 5_000  # instructions between two checks of the clock: less than a millisecond
_MAY_PASS = ("", "08", "40", "53", "55", "57", "58")  # classes of PostgreSQL's codes for temporary errors
_SNAPSHOT = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ"}
_ROWS_A_STEP = 50  # a row can be as long as a message: 1 MB

T = TypeVar("T")
Opened = TypeVar("Opened", bound=Any)


class Deadline:
    """The deadline of a read, over all its statements."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        if not self.left():
            raise self.error()

    def error(self) -> QueryTimeout:
        return QueryTimeout(
            f"the query took longer than {self.seconds:g} s: request a shorter time range, fewer series or a longer "
            "period"
        )


class ReadConnections:
    """A pool of connections, created at the first read. It must not be used after a fork."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self.dialect = sa.make_url(settings.connection).get_backend_name()
        self._engine: sa.Engine | None = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[sa.Connection, Deadline], T]) -> T:
        """Call ``work``; repeat the call on another connection if the pooled connection was closed while idle."""
        with contextlib.closing(self.stream(lambda *arguments: iter((work(*arguments),)))) as results:
            return next(results)

    def stream(self, work: Callable[[sa.Connection, Deadline], Iterator[T]]) -> Generator[T]:
        """Yield the results of ``work``, which reads with `in_steps`; the iterator uses a connection until it is
        exhausted or closed.

        Like `run`, it restarts on another connection if no result was yielded yet.
        """
        deadline = Deadline(self._settings.read_timeout_seconds)
        first = True
        while True:
            try:
                with contextlib.closing(self._streamed(work, deadline)) as found:
                    for each in found:
                        first = False
                        yield each
                return
            except ConnectionDied:
                if not (first and deadline.left()):
                    raise
                first = False

    def close(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _streamed(self, work: Callable[[sa.Connection, Deadline], Iterator[T]], deadline: Deadline) -> Generator[T]:
        with self._connected(deadline) as connection:
            yield from work(connection, deadline)

    @contextlib.contextmanager
    def _connected(self, deadline: Deadline) -> Iterator[sa.Connection]:
        bounded = _given_up_when_overdue if self.dialect == "postgresql" else _interrupted_when_overdue
        try:
            with self._opened().connect() as connection, bounded(connection, deadline):
                yield connection
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translated(error, deadline) from error

    def _opened(self) -> sa.Engine:
        with self._lock:
            if self._engine is None:
                make = _postgresql_engine if self.dialect == "postgresql" else _sqlite_engine
                self._engine = make(self._settings)
            return self._engine


def in_steps(
    connection: sa.Connection, statement: sa.Select[*tuple[Any, ...]], limit: int
) -> Iterator[sa.Row[*tuple[Any, ...]]]:
    """Yield at most ``limit`` rows of a statement, a few at a time. Call it within `ReadConnections.stream`."""
    if limit <= _ROWS_A_STEP:
        yield from connection.execute(statement)
        return
    _begin(connection)
    with contextlib.closing(connection.execute(statement, execution_options={"yield_per": _ROWS_A_STEP})) as result:
        yield from result


@contextlib.contextmanager
def snapshot(connection: sa.Connection) -> Iterator[None]:
    """Let all reads in the block see the same state of the database. After an error, the pool ends the transaction."""
    connection.exec_driver_sql(_SNAPSHOT[connection.dialect.name])
    yield
    connection.exec_driver_sql("ROLLBACK")


def _begin(connection: sa.Connection) -> None:
    """Begin the transaction that a cursor of PostgreSQL requires; the pool rolls it back."""
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql" and not raw.info.transaction_status:
        connection.exec_driver_sql("BEGIN")


class ConnectionDied(StorageUnavailable):
    """An idle connection of the pool was closed."""


@contextlib.contextmanager
def _interrupted_when_overdue(connection: sa.Connection, deadline: Deadline) -> Iterator[None]:
    raw: Any = connection.connection.dbapi_connection
    raw.set_progress_handler(lambda: deadline.left() == 0, _SQLITE_STEPS)
    try:
        yield
    finally:
        raw.set_progress_handler(None, 0)


@contextlib.contextmanager
def _given_up_when_overdue(connection: sa.Connection, deadline: Deadline) -> Iterator[None]:
    from monasca_common.storage.sql.bounded import NoAnswer

    raw: Any = connection.connection.dbapi_connection
    raw.give(deadline.left())
    try:
        yield
    except exc.DBAPIError as error:
        if isinstance(error.orig, NoAnswer):
            connection.invalidate()  # a late response would be read as the response to the next statement
        raise


def _pool_options(settings: StorageSettings) -> dict[str, Any]:
    return {
        "poolclass": sa.QueuePool,
        "pool_size": settings.read_connections,
        "max_overflow": 0,
        "pool_timeout": settings.read_timeout_seconds,
        # No transaction stays open between reads; a read of several statements can use `snapshot`.
        "isolation_level": "AUTOCOMMIT",
    }


def _postgresql_engine(settings: StorageSettings) -> sa.Engine:
    from monasca_common.storage.sql.bounded import BoundedConnection, connect_arguments, open_connection

    arguments, seconds = connect_arguments(settings.connection), settings.read_timeout_seconds
    # JIT compilation takes longer than any of these statements. Cursors are usually read to their end, but by default
    # PostgreSQL plans them to return the first tenth quickly.
    session = {"default_transaction_read_only": "on", "jit": "off", "cursor_tuple_fraction": "1"}

    def connect() -> BoundedConnection:
        # A generic plan takes neither partitions nor selectivity into account, so each statement is planned for its
        # parameters.
        opened = open_connection(
            arguments,
            Bounds(seconds, seconds, seconds),
            application="monasca-common reads",
            session=session,
            prepare_threshold=None,
            autocommit=True,
        ).give(seconds)
        return _checked(opened, "postgresql")

    return sa.create_engine("postgresql+psycopg://", creator=connect, **_pool_options(settings))


def _sqlite_engine(settings: StorageSettings) -> sa.Engine:
    path = sa.make_url(settings.connection).database or ""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False, timeout=settings.read_timeout_seconds
        )
        connection.create_function(UNHEX, 1, bytes.fromhex, deterministic=True)
        return _checked(connection, "sqlite")

    return sa.create_engine("sqlite://", creator=connect, **_pool_options(settings))


def _checked(connection: Opened, dialect: str) -> Opened:
    try:
        schema.check_database(connection.execute, dialect)
    except BaseException:
        connection.close()
        raise
    return connection


def translated(error: Exception, deadline: Deadline) -> StorageError:
    """Translate a driver's error to a storage error."""
    if isinstance(error, exc.TimeoutError):
        return StorageUnavailable("every connection is busy: raise [storage] read_connections, or send fewer requests")
    if not isinstance(error, exc.DBAPIError):
        return StorageError(f"a read failed: {error}")
    reason = str(error.orig).strip().partition("\n")[0]
    code = getattr(error.orig, "sqlstate", None) or ""
    if code == "57014" or reason == "interrupted":
        return deadline.error()
    if code in ("42P01", "42703") or reason.startswith(("no such table", "no such column")):
        return SchemaMismatch(f"a table or column is missing ({reason}): run `monasca-common db upgrade`")
    if code == "22003":
        return QueryTooLarge("a sum exceeds what a double can hold: request a shorter time range or fewer series")
    if error.connection_invalidated:
        return ConnectionDied(reason)
    if code == "55P03" or reason == "database is locked":
        return LockTimeout(reason)
    if code == "25006":  # the server has become a standby
        return StorageUnavailable(reason)
    if code[:2] in _MAY_PASS and isinstance(error, exc.OperationalError | exc.InterfaceError):
        return StorageUnavailable(reason)
    return StorageError(f"a read failed: {reason}")
