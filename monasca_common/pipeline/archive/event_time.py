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

# A metric as the API and agents write it, found three times as fast as by the parser, which reads all others. What
# seems to end within a text does not: a quote there has a backslash before it.
_USUAL_METRIC = r'^\{"metric": ?\{"name": ?"[^"]*", ?"dimensions": ?\{[^}]*\}, ?"timestamp": ?(\d{1,15})[,}]'
_DATE = f"^(?:{times.ISO_8601.pattern})$"


def with_own_ms(records: DataFrame) -> DataFrame:
    """Add ``own_ms``: the time that each ``value`` tells; null where it tells none. Of a member that is there twice
    the first counts."""
    from pyspark.sql import functions as sql

    text = sql.col("value").cast("string")
    # In steps, for what is used twice in one expression may be computed twice.
    return (
        records.withColumn("written", _written(text))
        .withColumn("told_ms", sql.coalesce(_number_ms(), _date_ms(), _creation_ms(text)))
        .withColumn("own_ms", sql.when(sql.col("told_ms").between(0, LATEST_MS), sql.col("told_ms")))
        .drop("written", "told_ms")
    )


def _written(text: Column) -> Column:
    """The envelope's timestamp as it is written."""
    from pyspark.sql import functions as sql

    usual = sql.regexp_extract(text, _USUAL_METRIC, 1)
    members = ("metric", "alarm-transitioned", "log", "event")
    return sql.coalesce(sql.nullif(usual, sql.lit("")), *(_member(text, f"{member}.timestamp") for member in members))


def _number_ms() -> Column:
    from pyspark.sql import functions as sql

    return sql.coalesce(sql.col("written").try_cast("bigint"), _whole(sql.col("written").try_cast("double")))


def _date_ms() -> Column:
    """Of logs and events, by their models. A metric that has one is no metric, and may have any hour."""
    from pyspark.sql import functions as sql

    written = sql.col("written")
    # With Z and an offset, as in an example of the public API, the offset counts. Spark wants seconds before one.
    offset_alone = sql.regexp_replace(written, "Z([+-])", "$1")
    with_seconds = sql.regexp_replace(offset_alone, "^(.{16})(?!:)", "$1:00")
    usual = sql.replace(with_seconds, sql.lit(","), sql.lit("."))
    return sql.when(written.rlike(_DATE), sql.unix_millis(usual.try_cast("timestamp")))


def _creation_ms(text: Column) -> Column:
    """Without a time of its own an envelope has that of its making, which is in seconds."""
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
    """Kafka's own time, as far as it has a date; a topic without times has -1."""
    from pyspark.sql import functions as sql

    return sql.least(sql.greatest(sql.unix_millis(timestamp), sql.lit(0)), sql.lit(LATEST_MS))
