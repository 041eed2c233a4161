# SPDX-License-Identifier: Apache-2.0
"""Kafka's jars: fetched once, kept in the user's cache."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from monasca_common.devbroker import fetch
from monasca_common.devbroker.errors import JarsUnavailable

JARS_VARIABLE = "MONASCA_COMMON_KAFKA_JARS"

_MAIN_JAR = f"kafka_{fetch.SCALA_VERSION}-{fetch.KAFKA_VERSION}.jar"


def kafka_jars(environ: Mapping[str, str] | None = None) -> Path:
    """The folder that holds Kafka's jars, fetching them when the cache has none (44 MB; progress on stderr).

    ``MONASCA_COMMON_KAFKA_JARS`` names another folder, which must have them already. Raises `JarsUnavailable`.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(JARS_VARIABLE)
    if given:
        if not Path(given, _MAIN_JAR).is_file():
            raise JarsUnavailable(
                f"{JARS_VARIABLE} is {given!r}, and there is no {_MAIN_JAR} in it: "
                "name a folder with the jars of that version, or unset it for them to be fetched"
            )
        return Path(given)
    folder = cache_folder(environ)
    if not folder.is_dir():
        _fetch_once(folder)
    return folder


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the jars of this version are kept."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(root, "monasca-common", f"kafka-{fetch.KAFKA_VERSION}")


def _fetch_once(folder: Path) -> None:
    """Fetch into a folder beside it and rename: whoever sees ``folder`` sees all of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if folder.is_dir():  # another process fetched while this one waited
            return
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a fetch that was killed
        try:
            fetch.fetch(partial)
            if not (partial / _MAIN_JAR).is_file():
                raise JarsUnavailable(f"the fetch ended without an error but also without {_MAIN_JAR}: try again")
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock of a process that ends is free."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
