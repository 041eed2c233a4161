# SPDX-License-Identifier: Apache-2.0
"""The jars of a session: Spark's Kafka connector from our cache, and those that Spark's Ivy fetches for the user."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from monasca_common.jars import Digests, JarError, fetched, foreign_jars, list_file, read_digests, read_list
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.settings import SparkSettings

LOG = logging.getLogger(__name__)

_OPTION = "jar_digests in group [spark]"
_SCALA = "2.13"


def kafka_connector() -> str:
    """The coordinates of the connector that belongs to the installed pyspark."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}"


def connector_jars() -> list[Path]:
    """The connector's jars, fetched if the cache does not have them; none if they are not pinned for this pyspark.

    Raises `SparkUnavailable`.
    """
    if not _connector_list().is_file():
        return []
    try:
        return sorted(fetched(_connector_list()).glob("*.jar"))
    except JarError as error:
        raise SparkUnavailable(str(error)) from error


def packages(settings: SparkSettings) -> list[str]:
    """The coordinates that Ivy resolves: the user's, and the connector if its jars are not pinned for this pyspark."""
    own = [each for each in settings.packages if each != kafka_connector()]
    return own if _connector_list().is_file() else [kafka_connector(), *own]


def resolved_jars(local: str, settings: SparkSettings) -> list[Path]:
    """The jars of the packages: those in Spark's list of local jars (URLs, separated by commas) that are neither the
    connector's nor given in the settings."""
    names = {_name(jar) for jar in settings.jars}
    if _connector_list().is_file():
        names |= {jar.name for jar in read_list(_connector_list())}
    urls = [url for url in local.split(",") if url and _name(url) not in names]
    return [Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)) for url in urls]


def _name(url: str) -> str:
    return Path(urllib.parse.urlsplit(url).path).name


def _connector_list() -> Path:
    import pyspark

    return list_file(f"spark-{pyspark.__version__}")


def check_jars(resolved: Sequence[Path], settings: SparkSettings) -> None:
    """Raise `SparkUnavailable` if a jar that Ivy has resolved is not one that ``settings.jar_digests`` pins.

    Without that option, log the jars.
    """
    if settings.jar_digests is None:
        if resolved:
            LOG.warning(
                "%s is not set, so the jars that Spark has fetched are used without a comparison: %s",
                _OPTION,
                ", ".join(jar.name for jar in resolved),
            )
    elif faults := [*foreign_jars(resolved, _given_digests(settings.jar_digests))]:
        raise SparkUnavailable(
            f"Spark has fetched jars that are not the pinned ones: {'; '.join(faults)}. Find out where they came from "
            f"(the repository that Spark's Ivy is set up for, or its cache); if they are right, pin them by {_OPTION}"
        )


def _given_digests(path: str) -> Digests:
    try:
        return read_digests(Path(path))
    except (OSError, ValueError) as error:
        raise SparkUnavailable(f"{_OPTION} cannot be read: {error}") from error
