# SPDX-License-Identifier: Apache-2.0
"""Connections that only read: pooled among threads, bounded in time, and silent about their driver's errors.

PostgreSQL stops its own statement; where the server itself stands still, `BoundedConnection` gives up the wait for it.
SQLite asks between instructions whether it should go on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc

from monasca_common.storage.errors import (
    QueryTimeout,
    QueryTooLarge,
    SchemaMismatch,
    StorageError,
    StorageUnavailable,
)
from monasca_common.storage.queries import UNHEX
from monasca_common.storage.settings import StorageSettings

_SQLITE_STEPS = 5_000  # instructions between two looks at the clock: below a millisecond
_CONNECT_SECONDS = (2, 10)

T = TypeVar("T")


class Deadline:
    """When a read, of however many statements, is over."""

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
            f"the query took longer than {self.seconds:g} s: ask for less time, fewer series or a longer period"
        )


class ReadConnections:
    """A pool, made at the first read. Not to be taken across a fork."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self.dialect = sa.make_url(settings.connection).get_backend_name()
        self._engine: sa.Engine | None = None
        self._lock = threading.Lock()

    def run(self, work: Callable[[sa.Connection, Deadline], T]) -> T:
        """Let ``work`` read; again on another connection where the one that the pool kept had died meanwhile."""
        deadline = Deadline(self._settings.read_timeout_seconds)
        try:
            return self._attempt(work, deadline)
        except _Died:
            if not deadline.left():
                raise
            return self._attempt(work, deadline)

    def close(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _attempt(self, work: Callable[[sa.Connection, Deadline], T], deadline: Deadline) -> T:
        bounded = _given_up_when_overdue if self.dialect == "postgresql" else _interrupted_when_overdue
        try:
            with self._opened().connect() as connection, bounded(connection, deadline):
                return work(connection, deadline)
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translated(error, deadline) from error

    def _opened(self) -> sa.Engine:
        with self._lock:
            if self._engine is None:
                make = _postgresql_engine if self.dialect == "postgresql" else _sqlite_engine
                self._engine = make(self._settings)
            return self._engine


class _Died(StorageUnavailable):
    """A connection that had been idle in the pool was gone."""


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
    from monasca_common.storage.postgresql.connection import NoAnswer

    raw: Any = connection.connection.dbapi_connection
    raw.give(deadline.left())
    try:
        yield
    except exc.DBAPIError as error:
        if isinstance(error.orig, NoAnswer):
            connection.invalidate()  # an answer may still come, and would be taken for the next statement's
        raise


def _pool_options(settings: StorageSettings) -> dict[str, Any]:
    return {
        "poolclass": sa.QueuePool,
        "pool_size": settings.read_connections,
        "max_overflow": 0,
        "pool_timeout": settings.read_timeout_seconds,
        # Each read is one statement or a few that need not agree: nothing is left open between them.
        "isolation_level": "AUTOCOMMIT",
    }


def _postgresql_engine(settings: StorageSettings) -> sa.Engine:
    from monasca_common.storage.postgresql.connection import BoundedConnection, connect_arguments

    arguments = connect_arguments(settings.connection)
    shortest, longest = _CONNECT_SECONDS
    timeout_ms = int(settings.read_timeout_seconds * 1000)
    # Compiling a statement takes longer than any of these.
    own = f"-c statement_timeout={timeout_ms} -c default_transaction_read_only=on -c jit=off"
    bounded = {
        "connect_timeout": max(shortest, min(longest, int(settings.read_timeout_seconds))),
        "application_name": "monasca-common reads",
        **arguments,
        "options": f"{own} {arguments.get('options', '')}".strip(),
        # A plan for any parameters knows no partition and no selectivity: it is made for the actual ones.
        "prepare_threshold": None,
    }

    def connect() -> BoundedConnection:
        return BoundedConnection.connect(**bounded).give(settings.read_timeout_seconds)

    return sa.create_engine("postgresql+psycopg://", creator=connect, **_pool_options(settings))


def _sqlite_engine(settings: StorageSettings) -> sa.Engine:
    path = sa.make_url(settings.connection).database or ""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False, timeout=settings.read_timeout_seconds
        )
        connection.create_function(UNHEX, 1, bytes.fromhex, deterministic=True)
        return connection

    return sa.create_engine("sqlite://", creator=connect, **_pool_options(settings))


def translated(error: Exception, deadline: Deadline) -> StorageError:
    """What storage says for what a driver said."""
    if isinstance(error, exc.TimeoutError):
        return StorageUnavailable("every connection for reading is busy: raise [storage] read_connections, or ask less")
    if not isinstance(error, exc.DBAPIError):
        return StorageError(f"a read failed: {error}")
    said = str(error.orig).strip().partition("\n")[0]
    code = getattr(error.orig, "sqlstate", None) or ""
    if code == "57014" or said == "interrupted":
        return deadline.error()
    if code in ("42P01", "42703") or said.startswith(("no such table", "no such column")):
        return SchemaMismatch(f"the database lacks what is read ({said}): run `monasca-common db upgrade`")
    if code == "22003":
        return QueryTooLarge("a sum exceeds what a double can hold: ask for a shorter time or fewer series")
    if error.connection_invalidated:
        return _Died(said)
    if code[:2] in ("", "08", "53", "55", "57", "58") and isinstance(error, exc.OperationalError | exc.InterfaceError):
        return StorageUnavailable(said)
    return StorageError(f"a read failed: {said}")
