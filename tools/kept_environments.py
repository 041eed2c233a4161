# SPDX-License-Identifier: Apache-2.0
"""Folders with installed packages that are made once, and kept in the user's cache for the next run."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 1200  # for pip, on a slow network: PySpark has 400 MB


class EnvironmentUnavailable(Exception):
    """An environment cannot be made. The text says why, for the table."""


def cache(name: str) -> Path:
    """The folder of the kept environments of one tool."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "monasca-common", name)


def pip(python: str, *arguments: str) -> None:
    """Install with that Python's pip. Raises `EnvironmentUnavailable`."""
    # Without tags git tells no version.
    settings = {"PBR_VERSION": os.environ.get("PBR_VERSION", "4.0.0.dev0"), "SKIP_WRITE_GIT_CHANGELOG": "1"}
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    run("pip", command, env={**os.environ, **settings, "SKIP_GENERATE_AUTHORS": "1"})


def run(name: str, command: list[str], env: dict[str, str] | None = None) -> None:
    """``name``: what the error calls it. Raises `EnvironmentUnavailable`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=env, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentUnavailable(f"{name} did not end within {_SECONDS} s") from None
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        said = next((line for line in reversed(complaints) if line.startswith("ERROR: No matching")), complaints[-1])
        raise EnvironmentUnavailable(f"{name} failed: {said.removeprefix('ERROR: ')}")


@contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """Whether the block must make ``folder``, while it alone may; what fails half-way is removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    complete = folder / "complete"
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not complete.exists()
        if missing:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            yield missing
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        complete.touch()
