# SPDX-License-Identifier: Apache-2.0
"""Virtual environments for what clashes with ours, made once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

_PINS = Path(__file__).parent / "environments"
_SECONDS = 600


def python(name: str) -> str:
    """The interpreter of ``environments/<name>.txt``'s environment, which is made if it is missing.

    Raises `subprocess.CalledProcessError` when it cannot be.
    """
    pins = _PINS / f"{name}.txt"
    key = hashlib.sha256(pins.read_bytes() + platform.python_version().encode()).hexdigest()[:12]
    folder = _cache() / f"{name}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            print(f"making the environment for {name} ...", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_SECONDS)
            install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", pins]
            subprocess.run(install, check=True, timeout=_SECONDS)
            (folder / "complete").touch()
    return str(folder / "bin" / "python")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "monasca-common", "benchmarks")
