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
    from pyspark.sql import Column

#: The last millisecond of the year 9999: a time beyond it is none, and has no date.
LATEST_MS = 253_402_300_799_999

# A metric as the API and agents write it, found three times as fast as by the parser, which reads all others. As no
# brace is let pass, the first that closes is that of the dimensions, so what follows is the metric's own.
_USUAL_METRIC = r'^\{"metric": ?\{"name": ?"[^"\\]*", ?"dimensions": ?\{[^{}]*\}, ?"timestamp": ?(\d{1,15})[,}]'
_DATE = f"^(?:{times.ISO_8601.pattern})$"


def own_ms(value: Column) -> Column:
    """The time that a message tells, given its bytes; null where it tells none. Of a member that is there twice the
    first counts."""
    from pyspark.sql import functions as sql

    text = value.cast("string")
    told = sql.coalesce(
        sql.regexp_extract(text, _USUAL_METRIC, 1).try_cast("bigint"),
        _whole(_member(text, "metric.timestamp")),
        _whole(_member(text, "alarm-transitioned.timestamp")),
        _of_log_or_event(text, "log"),
        _of_log_or_event(text, "event"),
    )
    return sql.when(told.between(0, LATEST_MS), told)


def kafka_ms(timestamp: Column) -> Column:
    """Kafka's own time, as far as it has a date; a topic without times has -1."""
    from pyspark.sql import functions as sql

    return sql.least(sql.greatest(sql.unix_millis(timestamp), sql.lit(0)), sql.lit(LATEST_MS))


def _of_log_or_event(text: Column, member: str) -> Column:
    """Without a time of its own it has that of its envelope, which is in seconds."""
    from pyspark.sql import functions as sql

    written = _member(text, f"{member}.timestamp")
    created = sql.when(_member(text, member).isNotNull(), _member(text, "creation_time").try_cast("double"))
    return sql.coalesce(
        _whole(written),
        sql.when(written.rlike(_DATE), _from_date(written)),
        sql.when(written.isNull(), _whole(sql.bround(created * 1000))),
    )


def _from_date(written: Column) -> Column:
    from pyspark.sql import functions as sql

    # With Z and an offset, as in an example of the public API, the offset counts.
    usual = sql.replace(sql.regexp_replace(written, r"Z([+-])", "$1"), sql.lit(","), sql.lit("."))
    return sql.unix_millis(usual.try_cast("timestamp"))


def _whole(number: Column) -> Column:
    from pyspark.sql import functions as sql

    number = number.try_cast("double")
    return sql.when(number.between(0, LATEST_MS), sql.floor(number))


def _member(text: Column, path: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.get_json_object(text, f"$.{path}")
