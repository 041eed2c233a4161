# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of peers whose dependencies conflict with ours, kept in the user's cache."""

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


def python(name: str | None) -> str:
    """Return the interpreter with the packages of ``environments/<name>.txt``, which are installed once.

    None: the running interpreter. Raises `subprocess.CalledProcessError` if the installation fails.
    """
    if name is None:
        return sys.executable
    pins = _PINS / f"{name}.txt"
    key = hashlib.sha256(pins.read_bytes() + platform.python_version().encode()).hexdigest()[:12]
    folder = _cache() / f"{name}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            print(f"installing the environment of {name} ...", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_SECONDS)
            install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", pins]
            subprocess.run(install, check=True, timeout=_SECONDS)
            (folder / "complete").touch()
    return str(folder / "bin" / "python")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "monasca-common", "benchmarks")
