# SPDX-License-Identifier: Apache-2.0
"""The journal: each process has a SQLite database with its unacknowledged reports.

The next process on the machine takes over the databases of ended processes and sends their reports. A report can
therefore be sent twice; readers recognize the repetition by its id. The database survives SIGKILL, but not the loss of
the disk; a power failure loses the last reports, because writes are not synchronized.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path

from monasca_common.audit import reports
from monasca_common.audit.reports import AuditReport

LOG = logging.getLogger(__name__)

_SUFFIX = ".sqlite"
_MAX_PENDING = 10_000  # reports of about three hours, at one per second
_TABLE = "CREATE TABLE IF NOT EXISTS report (number INTEGER PRIMARY KEY, id TEXT UNIQUE, value BLOB)"


class Journal:
    """The journal of this process. Thread-safe. Create it in the process that uses it, because the lock on the database
    shows that this process is alive."""

    def __init__(self, folder: str) -> None:
        """Keep reports in memory if the folder is not usable, because the audit must not stop the audited service."""
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._held: set[str] = set()  # ids of reports that must not be sent yet
        self._drops, self._is_copied = False, True
        self._path = self._folder / f"{uuid.uuid4().hex}{_SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path.touch(0o600)
            self._database = _locked(self._path)
        except (OSError, sqlite3.Error) as error:
            LOG.error(
                "folder in group [audit] is not usable; until a restart, a crash loses unsent reports (%s): name a "
                "folder with free space to which this service may write",
                error,
            )
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._database = _locked(":memory:")

    def add(self, report: AuditReport, *, held: bool = False) -> None:
        """Write a report. If the disk is full, log it and keep reports in memory until a restart.

        ``held``: exclude the report from `pending` until it is passed to `release`. If this process is killed earlier,
        the next process sends it.
        """
        row = (report.id, reports.encode(report))
        with self._lock:
            if held:
                self._held.add(report.id)
            try:
                self._insert([row])
            except sqlite3.Error as error:
                LOG.error("an audit report was not stored; until a restart, a crash loses unsent reports: %s", error)
                memory = _locked(":memory:")
                try:
                    self._database.backup(memory)
                except sqlite3.Error:
                    self._is_copied = False  # the next process sends the earlier reports
                self._database.close()
                self._database = memory
                self._insert([row])

    def release(self, ids: Iterable[str] | None = None) -> None:
        """Release these held reports (default: all)."""
        with self._lock:
            self._held.difference_update(list(self._held) if ids is None else ids)

    def pending(self, limit: int = _MAX_PENDING) -> dict[str, bytes]:
        """Return the first reports to send, encoded, by id, in the order of `add`."""
        query = "SELECT id, value FROM report ORDER BY number LIMIT ?"
        with self._lock:
            rows = self._database.execute(query, (limit + len(self._held),)).fetchall()
            return {report_id: value for report_id, value in rows if report_id not in self._held}

    def done(self, ids: Iterable[str]) -> None:
        """Remove reports that are acknowledged or belong to an aborted transaction."""
        ids = list(ids)
        with self._lock, self._database:
            self._held.difference_update(ids)
            self._database.executemany("DELETE FROM report WHERE id = ?", [(each,) for each in ids])

    def adopt(self) -> None:
        """Take over the reports of ended processes."""
        for path in sorted(self._folder.glob(f"{'[0-9a-f]' * 32}{_SUFFIX}")):  # other databases are kept
            try:
                if path != self._path and path.stat().st_size:  # an empty database may not be locked yet
                    self._take_over(path)
            except FileNotFoundError:
                continue  # another process took it over
            except (OSError, sqlite3.Error) as error:
                if getattr(error, "sqlite_errorcode", None) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN):
                    LOG.warning("the audit reports in %s cannot be taken over: %s", path, error)

    def close(self) -> None:
        """Close the database. The next process sends pending reports, and removes a database that cannot be removed
        now."""
        with self._lock, contextlib.suppress(OSError, sqlite3.Error):
            with contextlib.closing(self._database):
                empty = self._database.execute("SELECT 1 FROM report").fetchone() is None
            if empty and self._is_copied:
                self._path.unlink()

    def _take_over(self, path: Path) -> None:
        with contextlib.closing(_locked(path)) as other:
            rows = other.execute("SELECT id, value FROM report ORDER BY number").fetchall()
            with self._lock:
                self._insert(rows)
            path.unlink()
            # SQLite does not remove this file, because the database is unlinked
            Path(f"{path}-wal").unlink(missing_ok=True)

    def _insert(self, rows: Iterable[tuple[str, bytes]]) -> None:
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO report (id, value) VALUES (?, ?)", rows)
            oldest = "DELETE FROM report WHERE number <= (SELECT max(number) FROM report) - ?"
            dropped = self._database.execute(oldest, (_MAX_PENDING,)).rowcount
        if dropped and not self._drops:
            LOG.error("audit reports are dropped, because more than %d are not acknowledged", _MAX_PENDING)
        self._drops = dropped > 0


def _locked(path: Path | str) -> sqlite3.Connection:
    """Open a database and lock it until it is closed. Raises `sqlite3.OperationalError` if it is already locked."""
    database = sqlite3.connect(path, timeout=0, check_same_thread=False)
    try:
        for statement in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
            database.execute(f"PRAGMA {statement}")
        database.execute(_TABLE)
    except sqlite3.Error:
        database.close()
        raise
    return database
