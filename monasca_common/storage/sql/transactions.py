# SPDX-License-Identifier: Apache-2.0
"""Transactions that write a few rows: bounded in number and in time, with translated errors."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from monasca_common.storage.errors import DuplicateKey, StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.connections import Deadline, translated

T = TypeVar("T")


class Transactions:
    """Each has a connection of its own: those who write a few rows now and then need no pool."""

    def __init__(self, settings: StorageSettings) -> None:
        self._seconds = settings.read_timeout_seconds
        bounds = Bounds(self._seconds, self._seconds / 2, self._seconds)
        self._engine = schema.engine(settings.connection, to_write=True, bounds=bounds)
        self._places = threading.BoundedSemaphore(settings.read_connections)

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Call ``work`` in a transaction, and commit it.

        Raises `DuplicateKey`, `StorageUnavailable`, `SchemaMismatch`.
        """
        if not self._places.acquire(timeout=self._seconds):
            raise StorageUnavailable("every connection for writing is busy")
        try:
            with self._engine.begin() as connection:
                schema.check_database(connection.exec_driver_sql, connection.dialect.name)
                return work(connection)
        except exc.IntegrityError as error:
            raise DuplicateKey("the database has a row with this key") from error
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translated(error, Deadline(self._seconds)) from error
        finally:
            self._places.release()
