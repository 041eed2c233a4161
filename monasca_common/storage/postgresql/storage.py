# SPDX-License-Identifier: Apache-2.0
"""The driver ``postgresql``."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.storage.base import Capability, Kind, Pruned, Storage, StorageStatus, Writer
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.postgresql import database, partitions, series
from monasca_common.storage.postgresql.connection import connect
from monasca_common.storage.postgresql.writer import PostgresqlWriter
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounded import connect_arguments
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.reader import SqlReader


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
            if database.is_missing(self._arguments, self._bounds):
                database.create(self._arguments)
            with schema.engine(self.settings.connection).begin() as connection:
                schema.upgrade(connection)
        except (SQLAlchemyError, psycopg.Error) as error:
            raise StorageUnavailable(f"PostgreSQL: {schema.reason(error)}") from error

    def status(self) -> StorageStatus:
        try:
            with schema.engine(self.settings.connection, bounds=self._bounds).connect() as connection:
                return schema.status(connection)
        except SQLAlchemyError as error:
            if database.is_missing(self._arguments, self._bounds):
                return StorageStatus(None, schema.REVISION)
            raise StorageUnavailable(f"PostgreSQL: {schema.reason(error)}") from error

    def prune(self, now_ms: int) -> Iterator[Pruned]:
        timeout_seconds = self.settings.write_timeout_seconds
        connection = connect(self._arguments, timeout_seconds=timeout_seconds, application="monasca-common prune")
        with connection:
            yield from partitions.prune(connection.give, timeout_seconds, self.settings, now_ms)
            yield from series.prune(connection.give, timeout_seconds)
