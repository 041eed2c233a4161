# SPDX-License-Identifier: Apache-2.0
"""Programs that are built from Go modules once, and kept in the cache folder."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from monasca_common.jars import cache_folder

MISSING = None if shutil.which("go") else "Go is missing: install 1.26.7 or newer from https://go.dev/dl"
_BUILD_SECONDS = 3600


def built(sources, package="."):
    """Return the program of a package, built for this version of the files in the folder ``sources``."""
    files = sorted(Path(sources).iterdir())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = cache_folder(os.environ) / f"{Path(sources).name}-{digest}"
    if not (folder / "program").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder)
        command = ["go", "build", "-mod=mod", "-ldflags=-s -w", "-o", "new", package]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_BUILD_SECONDS)
        (folder / "new").replace(folder / "program")
    return folder / "program"
