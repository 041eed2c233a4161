# SPDX-License-Identifier: Apache-2.0
"""The driver ``postgresql``, and the creation of its database on the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import errors, sql
from sqlalchemy.exc import SQLAlchemyError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.storage.base import Capability, Kind, Pruned, Storage, StorageStatus, Writer
from monasca_common.storage.errors import StorageError, StorageUnavailable
from monasca_common.storage.postgresql import partitions, series
from monasca_common.storage.postgresql.connection import connect
from monasca_common.storage.postgresql.writer import PostgresqlWriter
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounded import BoundedConnection, connect_arguments, open_connection
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.reader import SqlReader

_MAINTENANCE = "postgres"  # this database exists on every server; connect to it before the configured database exists


class PostgresqlStorage(Storage):
    """PostgreSQL 14 or newer."""

    capabilities = frozenset(Capability)
    kinds = frozenset(Kind)

    def __init__(self, settings: StorageSettings, clock: Clock | None = None) -> None:
        """Raises `ConfigurationError` for a connection that is not a PostgreSQL URL."""
        self.settings = settings
        self._arguments = connect_arguments(settings.connection)
        self._clock = clock or SystemClock()
        seconds = settings.read_timeout_seconds
        self._bounds = Bounds(seconds, seconds, seconds)

    def open_writer(self) -> Writer:
        return PostgresqlWriter(self._arguments, self.settings, self._clock)

    def open_reader(self) -> SqlReader:
        return SqlReader(self.settings)

    def upgrade(self) -> None:
        """Create the database if it does not exist, and upgrade its schema."""
        try:
            if _is_missing(self._arguments, self._bounds):
                _create(self._arguments)
            with schema.engine(self.settings.connection).begin() as connection:
                schema.upgrade(connection)
        except (SQLAlchemyError, psycopg.Error) as error:
            raise StorageUnavailable(f"PostgreSQL: {schema.reason(error)}") from error

    def status(self) -> StorageStatus:
        try:
            with schema.engine(self.settings.connection, bounds=self._bounds).connect() as connection:
                return schema.status(connection)
        except SQLAlchemyError as error:
            if _is_missing(self._arguments, self._bounds):
                return StorageStatus(None, schema.REVISION)
            raise StorageUnavailable(f"PostgreSQL: {schema.reason(error)}") from error

    def prune(self, now_ms: int) -> Iterator[Pruned]:
        timeout_seconds = self.settings.write_timeout_seconds
        connection = connect(self._arguments, timeout_seconds=timeout_seconds, application="monasca-common prune")
        with connection:
            yield from partitions.prune(connection.give, timeout_seconds, self.settings, now_ms)
            yield from series.prune(connection.give, timeout_seconds)


def _is_missing(arguments: Mapping[str, Any], bounds: Bounds) -> bool:
    """Return whether the database is missing on the server; ``False`` if the server does not respond in time. The
    error of a refused connection does not show this, because it is only a text in the server's language. ``arguments``:
    libpq arguments."""
    try:
        with _maintenance(arguments, bounds) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [_name_of(arguments)])
            return found.fetchone() is None
    except psycopg.Error:
        return False


def _create(arguments: Mapping[str, Any]) -> None:
    """Create the database on the server if it does not exist. Raises `StorageError` if the permission is missing."""
    name = _name_of(arguments)
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


def _name_of(arguments: Mapping[str, Any]) -> str:
    """Return the name of the database; like libpq, use the user's name if none is given."""
    return str(arguments.get("dbname") or arguments.get("user") or "")


def _maintenance(arguments: Mapping[str, Any], bounds: Bounds | None) -> BoundedConnection:
    elsewhere = {**arguments, "dbname": _MAINTENANCE}
    return open_connection(elsewhere, bounds, application="monasca-common", autocommit=True)
