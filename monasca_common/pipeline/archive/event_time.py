# SPDX-License-Identifier: Apache-2.0
"""The event time of a message, as the models read it; a message without one has Kafka's timestamp.

The one member of an envelope says what it is: ``metric``, ``alarm-transitioned``, ``log`` or ``event``. The archive
keeps an envelope that breaks another rule of its model.

These are Spark's own expressions, because handing each record to Python and back costs more than the whole archiving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monasca_common.models import times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The last millisecond of the year 9999. A later time has no date, and counts as missing.
LATEST_MS = 253_402_300_799_999

# A metric as the API and agents write it. The expression is three times as fast as the parser, which reads all others.
# It cannot match within a string, because a quote there has a backslash before it.
_USUAL_METRIC = r'^\{"metric": ?\{"name": ?"[^"]*", ?"dimensions": ?\{[^}]*\}, ?"timestamp": ?(\d{1,15})[,}]'
_DATE = f"^(?:{times.ISO_8601.pattern})$"


def with_own_ms(records: DataFrame) -> DataFrame:
    """Add the column ``own_ms``: the event time in each ``value``; null without one. Of a repeated member the first
    counts."""
    from pyspark.sql import functions as sql

    text = sql.col("value").cast("string")
    # In steps, because Spark may compute twice what one expression uses twice.
    return (
        records.withColumn("written", _written(text))
        .withColumn("told_ms", sql.coalesce(_number_ms(), _date_ms(), _creation_ms(text)))
        .withColumn("own_ms", sql.when(sql.col("told_ms").between(0, LATEST_MS), sql.col("told_ms")))
        .drop("written", "told_ms")
    )


def _written(text: Column) -> Column:
    """The envelope's timestamp as text."""
    from pyspark.sql import functions as sql

    usual = sql.regexp_extract(text, _USUAL_METRIC, 1)
    members = ("metric", "alarm-transitioned", "log", "event")
    return sql.coalesce(sql.nullif(usual, sql.lit("")), *(_member(text, f"{member}.timestamp") for member in members))


def _number_ms() -> Column:
    from pyspark.sql import functions as sql

    return sql.coalesce(sql.col("written").try_cast("bigint"), _whole(sql.col("written").try_cast("double")))


def _date_ms() -> Column:
    """The date text of logs and events, as their models read it. A metric with one is invalid, and any hour will do."""
    from pyspark.sql import functions as sql

    written = sql.col("written")
    # With both Z and an offset, as in an example of the public API, the offset counts. Spark needs seconds before it.
    offset_alone = sql.regexp_replace(written, "Z([+-])", "$1")
    with_seconds = sql.regexp_replace(offset_alone, "^(.{16})(?!:)", "$1:00")
    usual = sql.replace(with_seconds, sql.lit(","), sql.lit("."))
    return sql.when(written.rlike(_DATE), sql.unix_millis(usual.try_cast("timestamp")))


def _creation_ms(text: Column) -> Column:
    """The envelope's creation_time, in place of a missing event time; it is in seconds."""
    from pyspark.sql import functions as sql

    created = _member(text, "creation_time").try_cast("double")
    return sql.when(sql.col("written").isNull(), _whole(sql.bround(created * 1000)))


def _whole(number: Column) -> Column:
    from pyspark.sql import functions as sql

    return sql.when(number.between(0, LATEST_MS), sql.floor(number))


def _member(text: Column, path: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.get_json_object(text, f"$.{path}")


def kafka_ms(timestamp: Column) -> Column:
    """Kafka's timestamp in ms, if it has a date. A topic without timestamps has -1."""
    from pyspark.sql import functions as sql

    return sql.least(sql.greatest(sql.unix_millis(timestamp), sql.lit(0)), sql.lit(LATEST_MS))
