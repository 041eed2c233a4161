# SPDX-License-Identifier: Apache-2.0
"""Finds an installed Java that can run Kafka and Spark."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from monasca_common.devbroker.errors import JavaNotFound

MINIMUM_VERSION = 17

_REMEDY = (
    f"install Java {MINIMUM_VERSION} or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-17-openjdk-headless) or set JAVA_HOME to an installation"
)


def find_java(environ: Mapping[str, str] | None = None) -> str:
    """Return the Java program in ``JAVA_HOME`` or on the path. Raises `JavaNotFound` with the remedy."""
    path = _program(os.environ if environ is None else environ)
    version = parse_version(_version_text(path))
    if version is None:
        raise JavaNotFound(f"{path} does not report its version: {_REMEDY}")
    if version < MINIMUM_VERSION:
        raise JavaNotFound(f"{path} is Java {version}, but Kafka and Spark need {MINIMUM_VERSION} or newer: {_REMEDY}")
    return path


def parse_version(text: str) -> int | None:
    """Return the feature version in the output of ``java -version``: 8 for "1.8.0_402", 17 for "17.0.15"."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major


def _program(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise JavaNotFound(f"JAVA_HOME is {home!r}, but {path} is not a program: {_REMEDY}")
        return str(path)
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaNotFound(f"java is not on the path: {_REMEDY}")
    return found


def _version_text(path: str) -> str:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFound(f"{path} cannot be run ({error}): {_REMEDY}") from error
    return done.stderr + done.stdout
