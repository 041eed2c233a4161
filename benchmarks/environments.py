# SPDX-License-Identifier: Apache-2.0
"""Virtual environments of peers whose dependencies conflict with this package, programs of peers in Go, and jars. All
are kept in the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from monasca_common.jars import JarError, fetched

_HERE = Path(__file__).parent
_SECONDS = 600
_GO_FOLDER = "/usr/local/go/bin"  # used if Go is not on PATH
_SHOWN_LINES = 3


class PeerMissing(Exception):
    """A peer's program cannot be built on this machine, or not be fetched; the message states the reason."""


def python(name: str | None) -> str:
    """Return the interpreter with the packages of ``environments/<name>.txt``, which are installed once, or the running
    interpreter if ``name`` is ``None``. Raises `subprocess.CalledProcessError` if the installation fails.
    """
    if name is None:
        return sys.executable
    pins = _HERE / "environments" / f"{name}.txt"

    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_SECONDS)
        command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-r", pins]
        subprocess.run(command, check=True, timeout=_SECONDS)

    folder = _filled(name, pins.read_bytes() + platform.python_version().encode(), install)
    return str(folder / "bin" / "python")


def go_program(name: str) -> str:
    """Return the program built once from the folder ``name`` below ``benchmarks``. Raises `PeerMissing` if Go is not
    installed or the build fails.
    """
    source = _HERE / name
    go = shutil.which("go") or shutil.which("go", path=_GO_FOLDER)
    if go is None:
        raise PeerMissing(f"go is neither on PATH nor in {_GO_FOLDER}: install it")

    def build(folder: Path) -> None:
        command = [go, "build", "-o", str(folder / source.name), "."]
        # Without it, an old Go would download a newer one.
        variables = {**os.environ, "GOTOOLCHAIN": "local"}
        try:
            subprocess.run(
                command, cwd=source, env=variables, check=True, timeout=_SECONDS, capture_output=True, text=True
            )
        except subprocess.CalledProcessError as error:
            tail = " | ".join(error.stderr.strip().splitlines()[-_SHOWN_LINES:])
            raise PeerMissing(f"go build: exit status {error.returncode}: {tail}") from error
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"go build takes more than {_SECONDS} s") from error

    version = subprocess.run([go, "version"], check=True, timeout=_SECONDS, capture_output=True).stdout
    files = b"".join((source / file).read_bytes() for file in ("main.go", "go.mod", "go.sum"))
    return str(_filled(source.name, files + version, build) / source.name)


def jars(name: str) -> str:
    """Return the folder with the jars of ``environments/<name>.txt``. Raises `PeerMissing`."""
    try:
        return str(fetched(_HERE / "environments" / f"{name}.txt"))
    except JarError as error:
        raise PeerMissing(str(error)) from error


def _filled(name: str, contents: bytes, fill: Callable[[Path], None]) -> Path:
    """Return the folder for ``contents``; ``fill`` fills it once."""
    folder = _cache() / f"{name}-{hashlib.sha256(contents).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            print(f"installing {name} ...", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            (folder / "complete").touch()
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "monasca-common", "benchmarks")
