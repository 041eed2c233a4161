# SPDX-License-Identifier: Apache-2.0
"""Spark's official Kafka connector: its options, from ``[kafka]``, and its jars, which are fetched once and compared
with their pinned digests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monasca_common.jars import JarError, fetched, list_file
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.source.offset_store import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Use large polls, because a poll takes as long as reading hundreds of records. A fetch at the end of a range must not
# wait, because the broker processes Spark's next request (for the end of the partition) only after the fetch.
_FETCHING = {
    "max.poll.records": "5000",
    "max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "fetch.max.wait.ms": "10",
}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def ranges_frame(
    spark: SparkSession,
    settings: ConsumerSettings,
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int = 0,
    headers: bool = True,
) -> DataFrame:
    """Return the records of these ranges: topic, partition, offset, timestamp, key, value and headers.

    Reading is faster without ``headers``. The query fails if a record is no longer in the log.
    """
    topic = settings.topics[0]
    wanted = sorted(ranges)
    reader = (
        spark.read.format("kafka")
        .options(**client_options(settings))
        .option("assign", json.dumps({topic: [each.partition for each in wanted]}))
        .option("startingOffsets", json.dumps({topic: {str(each.partition): each.start for each in wanted}}))
        .option("endingOffsets", json.dumps({topic: {str(each.partition): each.end for each in wanted}}))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", str(headers).lower())
    )
    if min_partitions:
        reader = reader.option("minPartitions", str(min_partitions))
    return reader.load()


def client_options(settings: ConsumerSettings) -> dict[str, str]:
    """Return the options of the Java client, each with the prefix ``kafka.``."""
    connection = settings.connection
    options = {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": connection.client_id,
        "isolation.level": "read_committed",
        **_FETCHING,
        **java_security(connection.security),
    }
    return {f"kafka.{name}": value for name, value in options.items()}


def java_security(security: Mapping[str, str]) -> dict[str, str]:
    """Translate librdkafka's options for TLS and authentication to the options of the Java client.

    PEM files are read here and passed as text, because executors on other machines do not have the files.
    """
    left = dict(security)
    options = {"security.protocol": left.pop("security.protocol", "plaintext").upper()}
    mechanism = left.pop("sasl.mechanism", None)
    if mechanism:
        user, password = left.pop("sasl.username"), left.pop("sasl.password")
        options["sasl.mechanism"] = mechanism
        options["sasl.jaas.config"] = (
            f"{_LOGIN_MODULES[mechanism]} required username={_quoted(user)} password={_quoted(password)};"
        )
    if authorities := left.pop("ssl.ca.location", None):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text_of(authorities)}
    if certificate := left.pop("ssl.certificate.location", None):
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text_of(certificate),
            "ssl.keystore.key": _text_of(left.pop("ssl.key.location")),
        }
    if key_password := left.pop("ssl.key.password", None):
        options["ssl.key.password"] = key_password
    if left:
        raise ConfigurationError(f"these options cannot be translated for Spark's connector: {', '.join(sorted(left))}")
    return options


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


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
