# SPDX-License-Identifier: Apache-2.0
"""The lock on a database file, to which only one process may write, with any number of threads.

The operating system releases the lock when the process ends, even after a crash, so no clean-up is necessary.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from monasca_common.storage.errors import StorageUnavailable, WriterAlreadyRuns

SUFFIX = ".writer-lock"


@dataclass(slots=True)
class WriterLock:
    """The lock of this process on one file, shared by its writers. Each transaction holds ``turn``."""

    path: Path
    descriptor: int
    holders: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)


_held: dict[Path, WriterLock] = {}
_guard = threading.Lock()


def acquire(database: Path) -> WriterLock:
    """Take the lock, or share it with this process's other writers. Raises `WriterAlreadyRuns`."""
    path = Path(os.path.realpath(database) + SUFFIX)
    with _guard:
        lock = _held.get(path) or _lock(path)
        _held[path] = lock
        lock.holders += 1
        return lock


def release(lock: WriterLock) -> None:
    with _guard:
        lock.holders -= 1
        if not lock.holders and _held.get(lock.path) is lock:
            del _held[lock.path]
            os.close(lock.descriptor)


def _lock(path: Path) -> WriterLock:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageUnavailable(
            f"cannot open {path}, the lock file that excludes other writers: {error.strerror}"
        ) from error
    try:
        # A POSIX lock is used, because a forked child does not inherit it and so cannot hold the lock of a dead writer.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise WriterAlreadyRuns(
            f"another process ({holder}) writes to {str(path).removesuffix(SUFFIX)}, and SQLite permits one: stop it, "
            "let one worker process write all kinds of rows, or use postgresql"
        ) from error
    with contextlib.suppress(OSError):  # ignore a full disk, because the process id is only information for operators
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return WriterLock(path, descriptor)


def _forget() -> None:
    """Discard the parent's locks in a forked child, which does not hold them."""
    global _guard
    _guard = threading.Lock()
    for lock in _held.values():
        os.close(lock.descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
