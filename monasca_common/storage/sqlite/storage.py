# SPDX-License-Identifier: Apache-2.0
"""The driver ``sqlite``."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import SQLAlchemyError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.storage.base import Capability, Kind, Pruned, Storage, StorageStatus, Writer
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.reader import SqlReader
from monasca_common.storage.sqlite.connection import check_folder, database_file, translated
from monasca_common.storage.sqlite.prune import prune
from monasca_common.storage.sqlite.writer import SqliteWriter


class SqliteStorage(Storage):
    """A SQLite file with WAL and synchronous=FULL, so that an acknowledged commit survives a power failure."""

    capabilities = frozenset({Capability.TRANSACTIONAL_OFFSETS, Capability.OFFSETS, Capability.READS})
    kinds = frozenset(Kind)

    def __init__(self, settings: StorageSettings, clock: Clock | None = None) -> None:
        """Raises `ConfigurationError` for a URL without a file."""
        self.settings = settings
        self.path = database_file(settings.connection)
        self._clock = clock or SystemClock()

    def open_writer(self) -> Writer:
        return SqliteWriter(self.path, self.settings, self._clock)

    def open_reader(self) -> SqlReader:
        return SqlReader(self.settings)

    def upgrade(self) -> None:
        check_folder(self.path)
        schema.make_private_file(self.path)
        # The mode is stored in the file, and cannot be set within a transaction.
        with translated(self.path), contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        try:
            with schema.engine(self.settings.connection, to_write=True).begin() as transaction:
                schema.upgrade(transaction)
        except SQLAlchemyError as error:
            raise StorageUnavailable(f"{self.path}: {schema.reason(error)}") from error

    def status(self) -> StorageStatus:
        if not self.path.exists():
            return StorageStatus(None, schema.REVISION)
        try:
            with schema.engine(self.settings.connection).connect() as connection:
                return schema.status(connection)
        except SQLAlchemyError as error:
            raise StorageUnavailable(f"{self.path}: {schema.reason(error)}") from error

    def prune(self, now_ms: int) -> Iterator[Pruned]:
        return prune(self.path, self.settings, now_ms)
