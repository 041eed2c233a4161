# SPDX-License-Identifier: Apache-2.0
"""Programs that are built from Go modules once, and kept in the cache folder."""

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from monasca_common.jars import cache_folder

MISSING = None if shutil.which("go") else "Go is missing: install 1.26.7 or newer from https://go.dev/dl"
_BUILD_SECONDS = 3600


def built(sources, package=".", *options):
    """Return the program of a package, built with these options of ``go build`` for this version of the files in the
    folder ``sources``."""
    parts = [package, *options, *(f"{file.name}\n{file.read_text()}" for file in sorted(Path(sources).iterdir()))]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    program = cache_folder(os.environ) / f"{Path(sources).name}-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            shutil.copytree(sources, folder, dirs_exist_ok=True)
            command = ["go", "build", "-mod=mod", "-ldflags=-s -w", *options, "-o", "program", package]
            left = signal.alarm(0)  # of the test's time-out, which is shorter than a build without Go's cache
            try:
                subprocess.run(command, cwd=folder, check=True, timeout=_BUILD_SECONDS)
            finally:
                signal.alarm(left)
            (Path(folder) / "program").replace(program)
    return program
