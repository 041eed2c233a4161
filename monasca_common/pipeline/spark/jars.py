# SPDX-License-Identifier: Apache-2.0
"""Compares the jars that Spark has fetched with pinned SHA-256 digests, before anything in them is used."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from monasca_common.devbroker.digests import Digests, foreign_jars, read_digests
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings

LOG = logging.getLogger(__name__)

_OPTION = "jar_digests in group [spark]"


def check_jars(fetched: Sequence[Path], settings: SparkSettings, pyspark_version: str) -> None:
    """Raise `SparkUnavailable` if a jar is not the pinned one.

    ``settings.jar_digests`` pins every jar; so do, without ``settings.packages``, the digests of the Kafka connector
    that are shipped for its version. A jar that nobody has pinned is logged.
    """
    shipped = digest_file(pyspark_version)
    if settings.jar_digests is not None:
        pinned, all_are_pinned = _given_digests(settings.jar_digests), True
    else:
        pinned = read_digests(shipped) if shipped.is_file() else {}
        all_are_pinned = shipped.is_file() and not settings.packages
    unpinned = [] if all_are_pinned else [jar.name for jar in fetched if jar.name not in pinned]
    faults = [*foreign_jars((jar for jar in fetched if jar.name not in unpinned), pinned)]
    if faults:
        raise SparkUnavailable(
            f"Spark has fetched jars that are not the pinned ones: {'; '.join(faults)}. Find out where they came from "
            f"(the repository that Spark's Ivy is set up for, or its cache); if they are right, pin them by {_OPTION}"
        )
    if unpinned:
        LOG.warning(
            "%s tells nothing of jars that Spark has fetched, so that they are used as they came: %s",
            _OPTION,
            ", ".join(unpinned),
        )


def digest_file(pyspark_version: str) -> Path:
    """The file that pins the jars of the Kafka connector; ``tools/jar_digests.py`` writes it."""
    return Path(__file__).with_name(f"connector-{pyspark_version}.txt")


def connector_jars(pyspark_version: str) -> Collection[str]:
    """The names of the Kafka connector's jars; none for a version whose jars are not pinned."""
    shipped = digest_file(pyspark_version)
    return read_digests(shipped) if shipped.is_file() else ()


def fetched_jars(local: str, given: Iterable[str]) -> list[Path]:
    """The files in Spark's list of local jars (URLs, separated by commas), without those that are ``given``."""
    names = {Path(urllib.parse.urlsplit(jar).path).name for jar in given}
    jars = [Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)) for url in local.split(",") if url]
    return [jar for jar in jars if jar.name not in names]


def _given_digests(path: str) -> Digests:
    try:
        return read_digests(Path(path))
    except (OSError, ValueError) as error:
        raise SparkUnavailable(f"{_OPTION} cannot be read: {error}") from error
