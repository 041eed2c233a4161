# SPDX-License-Identifier: Apache-2.0
"""Kafka's jars: fetched once, kept in the user's cache, and used if their digests are the pinned ones."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from monasca_common.devbroker import fetch
from monasca_common.devbroker.digests import Digests, foreign_jars, read_digests
from monasca_common.devbroker.errors import InvalidCluster, JarsUnavailable

JARS_VARIABLE = "MONASCA_COMMON_KAFKA_JARS"
VERSION_VARIABLE = "MONASCA_COMMON_KAFKA_VERSION"


def kafka_version(environ: Mapping[str, str] | None = None) -> str:
    """The version of Kafka that clusters run: what ``MONASCA_COMMON_KAFKA_VERSION`` says, else the default.

    Raises `InvalidCluster` for what is not a version.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(VERSION_VARIABLE) or fetch.KAFKA_VERSION
    if not re.fullmatch(r"\d+\.\d+\.\d+", given):
        raise InvalidCluster(
            f"{VERSION_VARIABLE} is {given!r}, which is not a version of Kafka: write three numbers, such as "
            f"{fetch.KAFKA_VERSION}, or unset it"
        )
    return given


def kafka_jars(environ: Mapping[str, str] | None = None) -> Path:
    """The folder that holds the jars of `kafka_version`, fetched when the cache has none (44 MB; progress on stderr).

    They are compared with the pinned digests each time, which takes 0.1 s. ``MONASCA_COMMON_KAFKA_JARS`` names another
    folder, which must have them already and is used as it is. Raises `JarsUnavailable`.
    """
    environ = os.environ if environ is None else environ
    version = kafka_version(environ)
    main_jar = _main_jar(version)
    given = environ.get(JARS_VARIABLE)
    if given:
        if not Path(given, main_jar).is_file():
            raise JarsUnavailable(
                f"{JARS_VARIABLE} is {given!r}, and there is no {main_jar} in it: "
                "name a folder with the jars of that version, or unset it for them to be fetched"
            )
        return Path(given)
    folder, digests = cache_folder(environ), pinned(version)
    if folder.is_dir():
        _check(folder, version, digests, f"remove {folder}, and they are fetched again")
    else:
        _fetch_once(folder, version, digests)
    return folder


def pinned(version: str) -> Digests:
    """The digests of the jars of a version of Kafka, and of the jars that it needs. Raises `JarsUnavailable`."""
    file = digest_file(version)
    if not file.is_file():
        raise JarsUnavailable(
            f"no digests of the jars of Kafka {version} are pinned, so nothing tells whether they are the right ones: "
            f"put them into a folder that you trust and name it in {JARS_VARIABLE}, or unset {VERSION_VARIABLE}"
        )
    return read_digests(file)


def digest_file(version: str) -> Path:
    """The file that pins the jars of a version; ``tools/jar_digests.py`` writes it."""
    return Path(__file__).with_name(f"kafka-{version}.txt")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the jars of this version are kept."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(root, "monasca-common", f"kafka-{kafka_version(environ)}")


def _main_jar(version: str) -> str:
    return f"kafka_{fetch.SCALA_VERSION}-{version}.jar"


def _check(folder: Path, version: str, digests: Digests, remedy: str) -> None:
    """Raise `JarsUnavailable` unless the folder has exactly the jars that are pinned."""
    jars = sorted(folder.glob("*.jar"))
    faults = [*foreign_jars(jars, digests)]
    faults += [f"{name} is missing" for name in sorted(digests.keys() - {jar.name for jar in jars})]
    if faults:
        raise JarsUnavailable(
            f"these are not the jars of Kafka {version} that were tested: {'; '.join(faults)}. Find out where they "
            f"came from; {remedy}"
        )


def _fetch_once(folder: Path, version: str, digests: Digests) -> None:
    """Fetch into a folder beside it and rename: a process that sees ``folder`` sees all of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if folder.is_dir():  # another process fetched while this one waited
            return
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a fetch that was killed
        try:
            fetch.fetch(partial, version)
            _check(partial, version, digests, "have Maven or Ivy set up for a repository that has the right ones")
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock of a process that ends is free."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
