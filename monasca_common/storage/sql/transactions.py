# SPDX-License-Identifier: Apache-2.0
"""Transactions that write few rows: limited in number and time, with translated errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from monasca_common.storage.errors import DuplicateKey
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.connections import Deadline, translated

T = TypeVar("T")


class Transactions:
    """Transactions of several threads, on connections that stay open: at most ``read_connections``, or one on SQLite,
    which permits only one writer."""

    def __init__(self, settings: StorageSettings) -> None:
        self._seconds = settings.read_timeout_seconds
        bounds = Bounds(self._seconds, self._seconds / 2, self._seconds)
        connections = settings.read_connections
        self._engine = schema.engine(settings.connection, to_write=True, bounds=bounds, connections=connections)

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Call ``work`` in a transaction, and commit it.

        Raises `DuplicateKey`, `StorageUnavailable`, `SchemaMismatch`.
        """
        try:
            with self._engine.begin() as connection:
                if not connection.info.get("is_checked"):
                    schema.check_database(connection.exec_driver_sql, connection.dialect.name)
                    connection.info["is_checked"] = True
                return work(connection)
        except exc.IntegrityError as error:
            raise DuplicateKey("the database has a row with this key") from error
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translated(error, Deadline(self._seconds)) from error

    def close(self) -> None:
        self._engine.dispose()
