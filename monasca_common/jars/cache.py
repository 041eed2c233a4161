# SPDX-License-Identifier: Apache-2.0
"""Caches the jars of each list in a folder; one process fetches them once. The jars are compared with the pinned
digests at each use."""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from monasca_common.jars.digests import Jar, JarError, foreign_jars, read_list
from monasca_common.jars.repository import configured_repository, download

CACHE_VARIABLE = "MONASCA_COMMON_JARS"

_LOCK_SECONDS = 900.0
_LOCK_EVERY_SECONDS = 0.1
_LINE_EVERY_JARS = 10


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that ``MONASCA_COMMON_JARS`` names, or ``monasca-common`` in the user's cache."""
    if given := environ.get(CACHE_VARIABLE):
        return Path(given)
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache"), "monasca-common")


def fetched(jar_list: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder with exactly the jars of this list, which has the name of the list. Fetch the jars if the
    folder does not exist.

    The digests are compared each time, which takes 0.1 s for 44 MB. Raises `JarError`.
    """
    environ = os.environ if environ is None else environ
    folder, jars = cache_folder(environ) / jar_list.stem, read_list(jar_list)
    try:
        if not folder.is_dir():
            _fetch_once(folder, jars, environ)
        _check(folder, jars)
    except OSError as error:
        raise JarError(
            f"the jars of {jar_list.stem} cannot be written to or read from {folder.parent} ({error}): set "
            f"{CACHE_VARIABLE} to a folder with free space that this user can write to and read"
        ) from error
    return folder


def _check(folder: Path, jars: tuple[Jar, ...]) -> None:
    """Raise `JarError` unless the folder has exactly these jars."""
    found = sorted({*folder.glob("*.jar"), *folder.glob("*.tar.gz")})
    pinned = {jar.name: jar.sha256 for jar in jars}
    faults = [*foreign_jars(found, pinned)]
    faults += [f"{name} is missing" for name in sorted(pinned.keys() - {jar.name for jar in found})]
    if faults:
        raise JarError(
            f"{folder} does not have the pinned jars: {'; '.join(faults)}. Find the cause, then remove {folder}: the "
            f"jars are fetched again"
        )


def _fetch_once(folder: Path, jars: tuple[Jar, ...], environ: Mapping[str, str]) -> None:
    """Fetch the jars into another folder and rename that folder, so that ``folder`` is complete as soon as it exists. A
    later fetch resumes a failed fetch."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if folder.is_dir():  # another process fetched it while this process waited
            return
        repository = configured_repository(environ)
        partial = folder.with_name(f"{folder.name}.partial")
        partial.mkdir(exist_ok=True)
        _say(f"Fetching {folder.name} from {repository.url}: {len(jars)} jars, which are kept for later use")
        for number, jar in enumerate(jars, start=1):
            if not _is_whole(partial / jar.name, jar):
                download(jar, repository, partial)
            if number % _LINE_EVERY_JARS == 0:
                _say(f"  {number} of {len(jars)}: {jar.name}")
        _say("  done")
        for file in set(partial.iterdir()) - {partial / jar.name for jar in jars}:
            file.unlink()
        partial.rename(folder)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _is_whole(file: Path, jar: Jar) -> bool:
    return file.is_file() and not [*foreign_jars([file], {jar.name: jar.sha256})]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the path for one process at a time. The lock is released when the process ends."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("w") as lock:
        waits = False
        while not _try_lock(lock.fileno()):
            if not waits:
                _say(f"another process is fetching {path.stem}; waiting")
            waits = True
            if time.monotonic() > deadline:
                raise JarError(
                    f"another process has held {path} for {_LOCK_SECONDS:.0f} s: end that process (fuser {path} shows "
                    f"its id)"
                )
            time.sleep(_LOCK_EVERY_SECONDS)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
