# SPDX-License-Identifier: Apache-2.0
"""The database itself, which a server has to have before there can be tables in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors, sql

from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql.bounded import BoundedConnection, open_connection

_MAINTENANCE = "postgres"  # a database that every server has, to connect to while the wanted one is not there


def is_missing(arguments: Mapping[str, Any]) -> bool:
    """Whether the server says that it has no such database; ``False`` where it cannot be asked.

    ``arguments``: of libpq. A refused connection carries no code for this, only a text in the server's language.
    """
    try:
        with _maintenance(arguments) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name_of(arguments)])
            return found.fetchone() is None
    except psycopg.Error:
        return False


def create(arguments: Mapping[str, Any]) -> None:
    """Make the database, unless it is there. Raises `StorageError` where the user may not."""
    name = name_of(arguments)
    try:
        with _maintenance(arguments) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except (errors.DuplicateDatabase, errors.UniqueViolation):  # somebody else made it meanwhile
        return
    except errors.InsufficientPrivilege as error:
        user = arguments.get("user", "")
        raise StorageError(
            f"PostgreSQL has no database {name!r}, and user {user!r} may not make it: let an administrator run "
            f'CREATE DATABASE "{name}" OWNER "{user}"'
        ) from error


def name_of(arguments: Mapping[str, Any]) -> str:
    """As libpq has it, which takes the user's name where no database is named."""
    return str(arguments.get("dbname") or arguments.get("user") or "")


def _maintenance(arguments: Mapping[str, Any]) -> BoundedConnection:
    elsewhere = {**arguments, "dbname": _MAINTENANCE}
    return open_connection(elsewhere, None, application="monasca-common", autocommit=True)
