# SPDX-License-Identifier: Apache-2.0
"""Reports that are not acknowledged yet, in a file of this process: they outlive it.

Whoever starts next on this machine takes over the files of processes that are gone, and sends what is in them. A report
may so be sent twice; its id tells. It survives the death of a process, however sudden; not the loss of the disk,
nor of the machine's power: no write waits for the disk.
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
_CLOSED = -1  # the number of a file that is closed soon is that of another one, a connection for example
_MOST_PENDING = 10_000  # at one report a second, the brokers may be unavailable for hours
_MOST_BYTES = 32 * 2**20  # of what is pending; the file may have twice as many


class Journal:
    """Thread-safe. Make it in the process that uses it: the lock on its file tells that this process lives."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._pending: dict[str, AuditReport] = {}
        self._held: set[str] = set()  # ids of those that are not to be sent yet
        self._sizes: dict[str, int] = {}  # in bytes, of what is pending
        self._pending_bytes = 0
        self._file_bytes = 0
        self._dropped = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path, self._file = self._own_file()
        except OSError as error:
            raise ConfigurationError(
                f"folder in group [audit] cannot be used ({error}): name a folder that this service may write to"
            ) from error

    def add(self, report: AuditReport, *, held: bool = False) -> None:
        """It is in its file when this returns; a disk that is full is logged, and the report is in memory alone.
        ``held``: it is not `pending` before `release`, unless this process is killed: then it is for the next one."""
        with self._lock:
            self._keep(report)
            if held:
                self._held.add(report.id)

    def release(self, ids: Iterable[str] | None = None) -> None:
        """Hold these no longer, or any."""
        with self._lock:
            self._held.difference_update(list(self._held) if ids is None else ids)

    def pending(self) -> list[AuditReport]:
        """What is to be sent, in the order in which it was added."""
        with self._lock:
            return [report for report in self._pending.values() if report.id not in self._held]

    def done(self, ids: Iterable[str]) -> None:
        """Forget reports that are acknowledged, or that became untrue."""
        with self._lock:
            for report in ids:
                self._drop(report)
            if not self._pending and self._file != _CLOSED:
                os.ftruncate(self._file, 0)
                self._file_bytes = 0

    def adopt(self) -> None:
        """Take over what processes that are gone have left."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path == self._path:
                continue
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self._take_over(file):
                        path.unlink()
            except FileNotFoundError:
                continue  # another process was faster
            except BlockingIOError:
                continue  # its process lives
            except OSError as error:
                LOG.warning("the reports in %s cannot be sent: %s", path, error)

    def close(self) -> None:
        """What is pending is left for whoever starts next."""
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
            os.close(file)  # one that adopts took it before it was locked

    def _take_over(self, lines: Iterable[bytes]) -> bool:
        """Whether all of them are in the file of this process, so that the other one is needed no more."""
        written = True
        with self._lock:
            for line in lines:
                report = reports.decode(line)  # a line of a process that was killed may be cut off
                if report is not None:
                    written &= self._keep(report)
        return written

    def _keep(self, report: AuditReport) -> bool:
        """Whether it is in its file. It begins a line of its own, whatever was cut off before."""
        line = _line(report)
        self._drop(report.id)
        self._pending[report.id] = report
        self._sizes[report.id] = len(line)
        self._pending_bytes += len(line)
        while len(self._pending) > 1 and (len(self._pending) > _MOST_PENDING or self._pending_bytes > _MOST_BYTES):
            self._drop(next(iter(self._pending)))
            self._dropped += 1
            if self._dropped % _MOST_PENDING == 1:
                LOG.error("%d reports of the audit were dropped: the brokers do not take them", self._dropped)
        try:
            if self._file_bytes + len(line) > 2 * _MOST_BYTES and self._file != _CLOSED:
                self._write_anew()
            else:
                self._write(self._file, line)
                self._file_bytes += len(line)
        except OSError as error:
            LOG.error("a report of the audit is in no file, so a crash would lose it: %s", error)
            return False
        return True

    def _drop(self, report: str) -> None:
        if self._pending.pop(report, None) is not None:
            self._pending_bytes -= self._sizes.pop(report)
            self._held.discard(report)

    def _write_anew(self) -> None:
        """Into another file, without what is acknowledged: whenever this process is killed, one of them has all."""
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
