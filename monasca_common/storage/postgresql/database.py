# SPDX-License-Identifier: Apache-2.0
"""Creates the database on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors, sql

from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql.bounded import BoundedConnection, open_connection
from monasca_common.storage.sql.bounds import Bounds

_MAINTENANCE = "postgres"  # this database exists on every server; connect to it before the configured database exists


def is_missing(arguments: Mapping[str, Any], bounds: Bounds) -> bool:
    """Return whether the database is missing on the server; ``False`` if the server does not respond in time. The
    error of a refused connection does not show this, because it is only a text in the server's language. ``arguments``:
    libpq arguments."""
    try:
        with _maintenance(arguments, bounds) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name_of(arguments)])
            return found.fetchone() is None
    except psycopg.Error:
        return False


def create(arguments: Mapping[str, Any]) -> None:
    """Create the database if it does not exist. Raises `StorageError` if the permission is missing."""
    name = name_of(arguments)
    try:
        with _maintenance(arguments, None) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except (errors.DuplicateDatabase, errors.UniqueViolation):  # another process has created it
        return
    except errors.InsufficientPrivilege as error:
        user = arguments.get("user", "")
        raise StorageError(
            f"PostgreSQL has no database {name!r}, and user {user!r} may not create it: ask an administrator to run "
            f'CREATE DATABASE "{name}" OWNER "{user}"'
        ) from error


def name_of(arguments: Mapping[str, Any]) -> str:
    """Return the name of the database; like libpq, use the user's name if none is given."""
    return str(arguments.get("dbname") or arguments.get("user") or "")


def _maintenance(arguments: Mapping[str, Any], bounds: Bounds | None) -> BoundedConnection:
    elsewhere = {**arguments, "dbname": _MAINTENANCE}
    return open_connection(elsewhere, bounds, application="monasca-common", autocommit=True)
