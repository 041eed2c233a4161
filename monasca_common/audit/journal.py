# SPDX-License-Identifier: Apache-2.0
"""The journal: a file of each process with its unacknowledged reports.

The next process on the machine takes over the files of ended processes and sends their reports. A report may thus be
sent twice, which its id shows. The file survives a kill, but not the loss of the disk or a power failure, because
writes are not synchronized.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path

from monasca_common.audit import reports
from monasca_common.audit.reports import AuditReport
from monasca_common.kafka.errors import ConfigurationError

LOG = logging.getLogger(__name__)

_SUFFIX = ".reports"
_CLOSED = -1  # the system gives the number of a closed file to the next one, such as a connection
_MAX_PENDING = 10_000  # one report a second, and brokers unavailable for hours
_MAX_BYTES = 32 * 2**20  # of pending reports; the file may have twice this size


class Journal:
    """Thread-safe. Create it in the process that uses it, because the lock on its file shows that the process lives."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._pending: dict[str, AuditReport] = {}
        self._held: set[str] = set()  # ids of reports that must not be sent yet
        self._sizes: dict[str, int] = {}  # in bytes, of pending reports
        self._pending_bytes = 0
        self._file_bytes = 0
        self._dropped = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path, self._file = self._own_file()
        except OSError as error:
            raise ConfigurationError(
                f"folder in group [audit] is not usable ({error}): name a folder to which this service may write"
            ) from error

    def add(self, report: AuditReport, *, held: bool = False) -> None:
        """Write a report to the file. If the disk is full, this is logged and the report is only in memory.

        ``held``: the report is not `pending` until `release`. If this process is killed before, the next one sends it.
        """
        with self._lock:
            self._keep(report)
            if held:
                self._held.add(report.id)

    def release(self, ids: Iterable[str] | None = None) -> None:
        """Release these held reports, by default all."""
        with self._lock:
            self._held.difference_update(list(self._held) if ids is None else ids)

    def pending(self) -> list[AuditReport]:
        """Return the reports to send, in the order of `add`."""
        with self._lock:
            return [report for report in self._pending.values() if report.id not in self._held]

    def done(self, ids: Iterable[str]) -> None:
        """Remove reports that are acknowledged, or whose transaction was aborted."""
        with self._lock:
            for report in ids:
                self._drop(report)
            if not self._pending and self._file != _CLOSED:
                os.ftruncate(self._file, 0)
                self._file_bytes = 0

    def adopt(self) -> None:
        """Take over the reports of ended processes."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path == self._path:
                continue
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self._take_over(file):
                        path.unlink()
            except FileNotFoundError:
                continue  # another process took it over
            except BlockingIOError:
                continue  # its process lives
            except OSError as error:
                LOG.warning("the audit reports in %s cannot be taken over: %s", path, error)

    def close(self) -> None:
        """Close the file. The next process sends pending reports."""
        with self._lock:
            if not self._pending:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = _CLOSED

    def _own_file(self) -> tuple[Path, int]:
        while True:
            path = self._folder / f"{uuid.uuid4().hex}{_SUFFIX}"
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return path, file
            os.close(file)  # another process took it over before it was locked

    def _take_over(self, lines: Iterable[bytes]) -> bool:
        """Return whether all reports are in this process's file, so that the other file can be removed."""
        written = True
        with self._lock:
            for line in lines:
                report = reports.decode(line)  # a killed process may leave an incomplete line
                if report is not None:
                    written &= self._keep(report)
        return written

    def _keep(self, report: AuditReport) -> bool:
        """Return whether the report is in the file. It starts a new line, because the last one may be incomplete."""
        line = _line(report)
        self._drop(report.id)
        self._pending[report.id] = report
        self._sizes[report.id] = len(line)
        self._pending_bytes += len(line)
        while len(self._pending) > 1 and (len(self._pending) > _MAX_PENDING or self._pending_bytes > _MAX_BYTES):
            self._drop(next(iter(self._pending)))
            self._dropped += 1
            if self._dropped % _MAX_PENDING == 1:
                LOG.error("%d audit reports were dropped, because too many are not acknowledged", self._dropped)
        try:
            if self._file_bytes + len(line) > 2 * _MAX_BYTES and self._file != _CLOSED:
                self._rewrite()
            else:
                self._write(self._file, line)
                self._file_bytes += len(line)
        except OSError as error:
            LOG.error("writing an audit report failed; a crash would lose it: %s", error)
            return False
        return True

    def _drop(self, report: str) -> None:
        if self._pending.pop(report, None) is not None:
            self._pending_bytes -= self._sizes.pop(report)
            self._held.discard(report)

    def _rewrite(self) -> None:
        """Write the pending reports to a new file, then remove the old one, so that a kill loses none."""
        path, file = self._own_file()
        try:
            for report in self._pending.values():
                self._write(file, _line(report))
        except OSError:
            path.unlink(missing_ok=True)
            os.close(file)
            raise
        self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._path, self._file, self._file_bytes = path, file, self._pending_bytes

    @staticmethod
    def _write(file: int, line: bytes) -> None:
        if os.write(file, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _line(report: AuditReport) -> bytes:
    return b"\n" + reports.encode(report) + b"\n"
