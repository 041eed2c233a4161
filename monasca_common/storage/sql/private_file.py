# SPDX-License-Identifier: Apache-2.0
"""The file of a SQLite database, made so that its user alone may read it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_private_file(path: str | Path) -> None:
    """Make an empty file (0600) unless there is one, whose permissions stay. SQLite itself would make it as the umask
    says; what it puts beside it (``-wal``, ``-shm``, ``-journal``) gets the file's own permissions.

    Where it cannot be made, SQLite cannot make it either, and says so in an error that is translated.
    """
    # The target of a link, because an exclusive creation follows none. Exclusive, because closing a file that SQLite
    # has open would release this process's locks on it.
    target = os.path.realpath(path)
    with contextlib.suppress(OSError):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
