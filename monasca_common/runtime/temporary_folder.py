# SPDX-License-Identifier: Apache-2.0
"""Temporary folders. A folder that a killed process left is removed by the next process with the same prefix.

A lock on a file in the folder shows that its process lives, because process ids repeat.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK = "lock"


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a folder whose name starts with ``prefix``, and remove it after the block, but not in a forked child."""
    _remove_left_behind(prefix)
    folder, lock = _locked_folder(prefix)
    owner = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            _remove(folder)
        os.close(lock)


def _locked_folder(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)  # another process removed it before it was locked


def _remove_left_behind(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # it was removed, or belongs to another user
            if path.parent.is_symlink() or path.parent.stat().st_uid != os.geteuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path.parent)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove the lock last, so that the next process finds the rest if this one is killed."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
        if os.listdir(folder) == [_LOCK]:
            shutil.rmtree(folder)
