# SPDX-License-Identifier: Apache-2.0
"""The jars of Kafka and of a schema registry: fetched once and kept in the user's cache, or in a folder that the user
names."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from monasca_common.devbroker.errors import InvalidCluster, JarsUnavailable
from monasca_common.jars import JarError, fetched, list_file

KAFKA_VERSION = "4.3.0"
JARS_VARIABLE = "MONASCA_COMMON_KAFKA_JARS"
VERSION_VARIABLE = "MONASCA_COMMON_KAFKA_VERSION"
REGISTRY_LIST = "apicurio-2.6.13.Final"
_SCALA_VERSION = "2.13"


def kafka_version(environ: Mapping[str, str] | None = None) -> str:
    """Return the version of Kafka: the value of ``MONASCA_COMMON_KAFKA_VERSION``, or the default.

    Raises `InvalidCluster` if the value is not a version.
    """
    environ = os.environ if environ is None else environ
    given = environ.get(VERSION_VARIABLE) or KAFKA_VERSION
    if not re.fullmatch(r"\d+\.\d+\.\d+", given):
        raise InvalidCluster(
            f"{VERSION_VARIABLE} is {given!r}, which is not a Kafka version: use three numbers, such as "
            f"{KAFKA_VERSION}, or unset the variable"
        )
    return given


def kafka_jars(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder with the jars of `kafka_version`; fetch missing jars (44 MB; progress on stderr).

    ``MONASCA_COMMON_KAFKA_JARS`` names a different folder, which must contain the jars. Raises `JarsUnavailable`.
    """
    environ = os.environ if environ is None else environ
    version = kafka_version(environ)
    given = environ.get(JARS_VARIABLE)
    if given:
        main_jar = f"kafka_{_SCALA_VERSION}-{version}.jar"
        if not Path(given, main_jar).is_file():
            raise JarsUnavailable(
                f"{JARS_VARIABLE} is {given!r}, which does not contain {main_jar}: name a folder with the jars of this "
                "version, or unset the variable to fetch them"
            )
        return Path(given)
    jar_list = list_file(f"kafka-{version}")
    if not jar_list.is_file():
        raise JarsUnavailable(
            f"the digests of the jars of Kafka {version} are not pinned, so they cannot be verified: put the jars into "
            f"a folder that you trust and name it in {JARS_VARIABLE}, or unset {VERSION_VARIABLE}"
        )
    return _fetched(jar_list, environ)


def registry_archive(environ: Mapping[str, str] | None = None) -> Path:
    """Return the archive of the schema registry; fetch it if it is missing (142 MB). Raises `JarsUnavailable`."""
    [archive] = _fetched(list_file(REGISTRY_LIST), os.environ if environ is None else environ).glob("*.tar.gz")
    return archive


def _fetched(jar_list: Path, environ: Mapping[str, str]) -> Path:
    try:
        return fetched(jar_list, environ)
    except JarError as error:
        raise JarsUnavailable(str(error)) from error
