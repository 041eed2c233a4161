# SPDX-License-Identifier: Apache-2.0
"""Programs and packages of peers, with the versions that the files in ``pins`` and ``go.mod`` list. Each is installed
once, and kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from monasca_common.jars import JarError, cache_folder, fetched
from monasca_common.tests.functional import go_programs

_HERE = Path(__file__).parent
_GO_SOURCE = _HERE / "storage" / "persister_go"
_INSTALL_SECONDS = 600


class PeerMissing(Exception):
    """A peer cannot be fetched, or not be built on this machine; the message states the reason."""


def installed(name: str) -> Path:
    """Return the path of the program of ``go``, or of the folder with the jars of ``debezium`` or with the Python
    packages of any other peer. Raises `PeerMissing`."""
    if name == "go" and go_programs.MISSING:
        raise PeerMissing(go_programs.MISSING)
    pins = _HERE / "pins" / f"{name}.txt"
    try:
        if name == "go":
            return Path(go_programs.built(_GO_SOURCE))
        return fetched(pins) if name == "debezium" else _packages(pins)
    except (JarError, OSError, subprocess.SubprocessError) as error:
        raise PeerMissing(f"{name} cannot be installed: {error}") from error


def _packages(pins: Path) -> Path:
    digest = hashlib.sha256(pins.read_bytes() + platform.python_version().encode()).hexdigest()[:12]
    folder = cache_folder(os.environ) / "benchmarks" / f"{pins.stem}-packages-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            target = Path(partial, "packages")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "-r", str(pins)]
            subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)
            target.rename(folder)
    return folder
