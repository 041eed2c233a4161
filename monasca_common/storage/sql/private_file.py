# SPDX-License-Identifier: Apache-2.0
"""Creates the file of a SQLite database so that only its user can read it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_private_file(path: str | Path) -> None:
    """Create an empty file (0600), or keep an existing one. SQLite itself would use the umask; it copies the file's
    permissions to its other files (``-wal``, ``-shm``, ``-journal``).

    If the file cannot be created, SQLite fails as well, and its error is translated.
    """
    # The target of a link is opened, because an exclusive creation does not follow links. The creation is exclusive,
    # because closing a file that SQLite has open would release this process's locks on it.
    target = os.path.realpath(path)
    with contextlib.suppress(OSError):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
