# SPDX-License-Identifier: Apache-2.0
"""Connections to PostgreSQL with time-outs, and the translation of PostgreSQL's errors.

A connection pooler between this program and the server must use session pooling, because the writer uses temporary
tables and session settings.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import orjson
import psycopg
from psycopg import errors

from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable, TooMuchAtOnce
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounded import BoundedConnection, NoAnswer, open_connection
from monasca_common.storage.sql.bounds import Bounds

_OLDEST_VERSION = 14  # the first version that can detach partitions concurrently
_LIMIT_EXCEEDED = "54"  # the SQLSTATE class of errors about an index entry or a JSON document that is too large

_SESSION = {
    # A statement must see rows that were committed while the previous statement waited for a lock.
    "default_transaction_isolation": "read\\ committed",
    # JIT compilation costs more than any statement here: a tenth of a second for joins of partitions.
    "jit": "off",
    # A batch finds its rows by their keys. A new partition has no statistics, so the planner would read the whole
    # partition instead, in the worst case once for each row of the batch.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}

#: Errors that rows may cause, during encoding (`orjson` raises a `TypeError`) or in the server.
ROW_ERRORS = (psycopg.Error, ValueError, OverflowError, struct.error, orjson.JSONEncodeError)


def connect(arguments: dict[str, Any], *, timeout_seconds: float, application: str) -> BoundedConnection:
    """Open a connection in autocommit mode. Raises `StorageUnavailable`, `SchemaMismatch`."""
    bounds = Bounds(timeout_seconds, timeout_seconds / 2, timeout_seconds)
    with translated():
        connection = open_connection(arguments, bounds, application=application, session=_SESSION, autocommit=True)
    try:
        with translated():
            connection.give(timeout_seconds)
            # An acknowledged COMMIT must survive a power failure, regardless of the server's default.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = %s",
                ["off"],
            )
            _check_version(connection)
            schema.check_database(connection.execute, "postgresql")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: BoundedConnection) -> None:
    version = connection.info.server_version // 10_000
    if version < _OLDEST_VERSION:
        raise SchemaMismatch(f"PostgreSQL {version} is too old: this program needs {_OLDEST_VERSION} or newer")


# Errors for a time-out of the server or of this client, or for too few locks (each day of rows needs several locks).
_TOO_MUCH = (errors.QueryCanceled, errors.IdleInTransactionSessionTimeout, errors.OutOfMemory, NoAnswer)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate errors of psycopg and of the system within the block to `StorageUnavailable` or `SchemaMismatch`."""
    try:
        yield
    except (errors.UndefinedTable, errors.UndefinedColumn) as error:
        raise SchemaMismatch(f"{_text(error)}: run `monasca-common db upgrade`") from error
    except _TOO_MUCH as error:
        raise TooMuchAtOnce(f"PostgreSQL: {_text(error)}") from error
    except (psycopg.Error, OSError) as error:
        raise StorageUnavailable(f"PostgreSQL: {_text(error)}") from error


def is_of_a_row(error: BaseException) -> bool:
    """Return whether the rows caused the error, rather than the state of the database."""
    if isinstance(error, psycopg.Error):
        sqlstate = error.sqlstate or ""
        return isinstance(error, psycopg.DataError | psycopg.IntegrityError) or sqlstate.startswith(_LIMIT_EXCEEDED)
    return isinstance(error, ROW_ERRORS)


def reason(error: BaseException) -> str:
    """Return the reason why a row is refused, in one line."""
    return f"the database refuses it: {_text(error)}"


def _text(error: BaseException) -> str:
    """Return the text of an error; of the server's, the first line with the code. Other lines may quote rows."""
    if not isinstance(error, psycopg.Error):
        return str(error)
    message = error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]
    return f"{message} ({error.sqlstate})" if error.sqlstate else message
