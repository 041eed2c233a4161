# SPDX-License-Identifier: Apache-2.0
"""When what a message tells of happened, as the models read it; a message that does not say it has Kafka's time.

An envelope is known by its one member: ``metric``, ``alarm-transitioned``, ``log`` or ``event``. Whether it breaks
another rule of its model is nothing to an archive: it is kept.

These are Spark's own expressions: handing each record to Python and back costs more than all that archiving does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monasca_common.models import times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The last millisecond of the year 9999: a time beyond it is none, and has no date.
LATEST_MS = 253_402_300_799_999

# A metric as the API and agents write it, found three times as fast as by the parser, which reads all others. As no
# brace is let pass, the first that closes is that of the dimensions, so what follows is the metric's own.
_USUAL_METRIC = r'^\{"metric": ?\{"name": ?"[^"\\]*", ?"dimensions": ?\{[^{}]*\}, ?"timestamp": ?(\d{1,15})[,}]'
_TIMED = "struct<timestamp: string>"
_ENVELOPE = (
    f"struct<metric: {_TIMED}, `alarm-transitioned`: {_TIMED}, log: {_TIMED}, event: {_TIMED}, creation_time: string>"
)
_DATE = f"^(?:{times.ISO_8601.pattern})$"


def with_own_ms(records: DataFrame) -> DataFrame:
    """Add ``own_ms``: the time that each ``value`` tells; null where it tells none."""
    from pyspark.sql import functions as sql

    text = sql.col("value").cast("string")
    usual = sql.regexp_extract(text, _USUAL_METRIC, 1).try_cast("bigint")
    unusual = sql.when(sql.col("usual_ms").isNull(), text)
    # Steps, for Spark would parse again wherever a parsed envelope is used in one expression.
    return (
        records.withColumn("usual_ms", usual)
        .withColumn("envelope", sql.from_json(unusual, _ENVELOPE))
        .withColumn("told_ms", sql.coalesce("usual_ms", _told_ms(sql.col("envelope"))))
        .withColumn("own_ms", sql.when(sql.col("told_ms").between(0, LATEST_MS), sql.col("told_ms")))
        .drop("usual_ms", "envelope", "told_ms")
    )


def kafka_ms(timestamp: Column) -> Column:
    """Kafka's own time, as far as it has a date; a topic without times has -1."""
    from pyspark.sql import functions as sql

    return sql.least(sql.greatest(sql.unix_millis(timestamp), sql.lit(0)), sql.lit(LATEST_MS))


def _told_ms(envelope: Column) -> Column:
    from pyspark.sql import functions as sql

    measured = sql.coalesce(envelope["metric"]["timestamp"], envelope["alarm-transitioned"]["timestamp"])
    other = sql.coalesce(envelope["log"], envelope["event"])
    written = other["timestamp"]
    # A log or an event without a time of its own has that of its envelope, which is in seconds.
    created = sql.when(other.isNotNull() & written.isNull(), envelope["creation_time"].try_cast("double"))
    return sql.coalesce(
        _whole(measured),
        _whole(written),
        sql.when(written.rlike(_DATE), _from_date(written)),
        _whole(sql.bround(created * 1000)),
    )


def _whole(number: Column) -> Column:
    from pyspark.sql import functions as sql

    number = number.try_cast("double")
    return sql.when(number.between(0, LATEST_MS), sql.floor(number))


def _from_date(written: Column) -> Column:
    from pyspark.sql import functions as sql

    # With Z and an offset, as in an example of the public API, the offset counts.
    usual = sql.replace(sql.regexp_replace(written, r"Z([+-])", "$1"), sql.lit(","), sql.lit("."))
    return sql.unix_millis(usual.try_cast("timestamp"))
