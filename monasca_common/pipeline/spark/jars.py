# SPDX-License-Identifier: Apache-2.0
"""The jars of Spark's Kafka connector, fetched once and compared with their pinned digests."""

from __future__ import annotations

from pathlib import Path

from monasca_common.jars import JarError, fetched, list_file
from monasca_common.pipeline.errors import SparkUnavailable


def kafka_connector() -> str:
    """Return the Maven coordinates of the connector for the installed pyspark."""
    import pyspark

    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def connector_jars() -> list[Path] | None:
    """Return the connector's jars, fetching jars that are not cached, or ``None`` if no jars are pinned for this
    pyspark.

    Raises `SparkUnavailable`.
    """
    import pyspark

    pinned = list_file(f"spark-{pyspark.__version__}")
    if not pinned.is_file():
        return None
    try:
        return sorted(fetched(pinned).glob("*.jar"))
    except JarError as error:
        raise SparkUnavailable(str(error)) from error
