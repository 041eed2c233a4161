# SPDX-License-Identifier: Apache-2.0
"""Connections to a SQLite file, and the translation of their errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import orjson
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.errors import SchemaMismatch, StorageUnavailable
from monasca_common.storage.sql import schema

#: Errors that rows can cause: a violated constraint, a wrong size or type, or a number or text that cannot be encoded.
ROW_ERRORS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeError,
    orjson.JSONEncodeError,
)
_CACHE_KIB = 65_536
_WAL_PAGES = 10_000  # 40 MB are written between checkpoints, because a batch of random keys changes thousands of pages
_WAL_FILE_BYTES = 256 * 1024 * 1024


def database_file(connection: str) -> Path:
    """Return the file in a SQLAlchemy URL. Raises `ConfigurationError`."""
    try:
        name = make_url(connection).database
    except (ArgumentError, ValueError):
        name = None
    if not name or name == ":memory:" or name.startswith("file:"):
        raise ConfigurationError(
            "connection in group [database] names no file: write sqlite:/// and the file's path, such as "
            "sqlite:////var/lib/monasca/monasca.sqlite (a database in memory would be lost, and other processes could "
            "not read it)"
        )
    return Path(name).absolute()


def check_folder(path: Path) -> None:
    """Raise `StorageUnavailable` if the folder of the file does not exist."""
    if not path.parent.is_dir():
        raise StorageUnavailable(
            f"the folder of the database, {path.parent}, does not exist: create it, or correct connection in group "
            "[database]"
        )


def connect(path: Path, *, timeout_seconds: float) -> sqlite3.Connection:
    """Open a connection whose caller begins and commits transactions. Raises `StorageUnavailable`, `SchemaMismatch`."""
    with translated(path):
        check_folder(path)
        if not path.exists():
            schema.check(None)
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", timeout=timeout_seconds, isolation_level=None, check_same_thread=False, uri=True
        )
    try:
        with translated(path):
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA temp_store=MEMORY")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit={_WAL_FILE_BYTES}")
            schema.check_database(connection.execute, "sqlite")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the file within the block to `StorageUnavailable` or `SchemaMismatch`."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if "no such table" in str(error) or "no such column" in str(error):
            raise SchemaMismatch(f"{path}: {error}: run `monasca-common db upgrade`") from error
        raise StorageUnavailable(f"{path}: {error} ({getattr(error, 'sqlite_errorname', 'file')})") from error
