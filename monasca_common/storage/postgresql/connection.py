# SPDX-License-Identifier: Apache-2.0
"""Connections to PostgreSQL that answer within a time, and what PostgreSQL's errors mean.

A connection pooler in front must pool sessions, not transactions: temporary tables and session settings are used.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Generator, Iterator
from typing import Any, Self, TypeVar

import orjson
import psycopg
from psycopg import errors
from sqlalchemy import make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import ArgumentError

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage import schema
from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable

T = TypeVar("T")

_CONNECT_SECONDS = 10
_OLDEST_VERSION = 14  # the first that detaches partitions without stopping everybody
# The server gives up first: then its answer says why, and nothing of the transaction is left behind.
_GRACE_SECONDS = 1.0
_LIMIT_EXCEEDED = "54"  # the class of SQLSTATE: an index entry or a JSON document that is too large

#: Errors that rows may cause: while they are encoded (`orjson` raises a `TypeError`), or in the server's eyes.
ROW_ERRORS = (psycopg.Error, ValueError, OverflowError, struct.error, orjson.JSONEncodeError)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time; it may be frozen, and then no setting of its own ends the wait."""


class BoundedConnection(psycopg.Connection[Any]):
    """Waits until ``deadline`` (of the monotonic clock) at most, whatever it waits for."""

    deadline = float("inf")

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._until_deadline(gen), *args, **kwargs)

    def _until_deadline(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """``gen``, given up when it is late: who drives it comes by ten times a second, ready or not."""
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if not ready and time.monotonic() > self.deadline:
                    self.pgconn.finish()  # nothing further is to be asked of it, not even to roll back
                    raise NoAnswer("no answer in time; the connection is given up")
                waits_for = gen.send(ready)
        except StopIteration as done:
            value: T = done.value
            return value

    def give(self, seconds: float) -> Self:
        """Allow ``seconds`` from now on."""
        self.deadline = time.monotonic() + seconds + _GRACE_SECONDS
        return self


def connect_arguments(connection: str) -> dict[str, Any]:
    """What libpq is told, of a SQLAlchemy URL. Raises `ConfigurationError`, which quotes nothing of it."""
    try:
        url = make_url(connection).set(drivername="postgresql+psycopg")
        arguments = PGDialect_psycopg().create_connect_args(url)[1]  # type: ignore[no-untyped-call]
    except (ArgumentError, ValueError, TypeError):
        arguments = None
    if arguments is None:
        raise ConfigurationError(
            "connection in group [database] is no URL of PostgreSQL (it is a secret and is not shown): write "
            "postgresql://user:password@host/database"
        )
    return {name: value for name, value in arguments.items() if name != "context"}


def connect(arguments: dict[str, Any], *, timeout_seconds: float, application: str) -> BoundedConnection:
    """A connection in autocommit. Raises `StorageUnavailable`, `SchemaMismatch`."""
    defaults = {
        "connect_timeout": max(2, min(_CONNECT_SECONDS, round(timeout_seconds))),
        "application_name": application,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round(timeout_seconds * 1000),
    }
    given = arguments.get("options", "")
    with translated():
        connection = BoundedConnection.connect(
            **{**defaults, **arguments, "options": f"{_session_settings(timeout_seconds)} {given}".strip()},
            autocommit=True,
        )
    try:
        with translated():
            connection.give(timeout_seconds)
            # An answered COMMIT must survive a loss of power, also where the server's default says otherwise.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = %s",
                ["off"],
            )
            _check_version(connection)
            schema.check(_revision(connection))
    except BaseException:
        connection.close()
        raise
    return connection


def _session_settings(timeout_seconds: float) -> str:
    milliseconds = round(timeout_seconds * 1000)
    settings = {
        "statement_timeout": milliseconds,
        # A wait for another session is told apart from a statement that is slow.
        "lock_timeout": max(1, milliseconds // 2),
        # A frozen writer's locks do not keep its successor out for ever.
        "idle_in_transaction_session_timeout": milliseconds,
        "timezone": "UTC",
        # Compiling costs more than any statement here takes: a tenth of a second for joins of partitions.
        "jit": "off",
        # A batch finds its rows by their keys. A young partition has no statistics, and would be read whole instead,
        # once for each row of the batch in the worst case.
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_seqscan": "off",
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _check_version(connection: BoundedConnection) -> None:
    version = connection.info.server_version // 10_000
    if version < _OLDEST_VERSION:
        raise SchemaMismatch(f"PostgreSQL {version} is too old: this program needs {_OLDEST_VERSION} or newer")


def _revision(connection: BoundedConnection) -> str | None:
    try:
        row = connection.execute(schema.SELECT_REVISION.encode()).fetchone()
    except errors.UndefinedTable:
        return None
    return str(row[0]) if row else None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise `StorageUnavailable` or `SchemaMismatch` for what psycopg raises within the block."""
    try:
        yield
    except (errors.UndefinedTable, errors.UndefinedColumn) as error:
        raise SchemaMismatch(f"{_text(error)}: run `monasca-common db upgrade`") from error
    except psycopg.Error as error:
        raise StorageUnavailable(f"PostgreSQL: {_text(error)}") from error


def is_of_a_row(error: BaseException) -> bool:
    """Whether it is rows that the error is about, rather than the database's state."""
    if isinstance(error, psycopg.Error):
        sqlstate = error.sqlstate or ""
        return isinstance(error, psycopg.DataError | psycopg.IntegrityError) or sqlstate.startswith(_LIMIT_EXCEEDED)
    return isinstance(error, ROW_ERRORS)


def reason(error: BaseException) -> str:
    """Why a row is refused, in one line."""
    return f"the database refuses it: {_text(error) if isinstance(error, psycopg.Error) else error}"


def _text(error: psycopg.Error) -> str:
    """The server's own first line, and the code; what else it says quotes rows."""
    message = error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]
    return f"{message} ({error.sqlstate})" if error.sqlstate else message
