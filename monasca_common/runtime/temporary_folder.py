# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of processes that fork."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a folder whose name starts with ``prefix``, and remove it after the block, but not in a forked child."""
    folder = tempfile.mkdtemp(prefix=prefix)
    owner = os.getpid()
    try:
        yield Path(folder)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
