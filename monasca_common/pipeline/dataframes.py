# SPDX-License-Identifier: Apache-2.0
"""Aggregation functions for your own Spark jobs, from DataFrame to DataFrame: metrics to partials, and partials to
rows. No function in this module accesses a database or remembers counted records: each record of a frame counts once.
Executors need this package with the extra ``spark``, and the packages of the components that specifications name.
"""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from monasca_common.pipeline.aggregate.batch import KEY, PARTIALS, RecordDecoder, partial_batches, partials_of
from monasca_common.pipeline.aggregate.output import dimensions, value_meta
from monasca_common.pipeline.aggregate.partials import group_of_text, merged
from monasca_common.pipeline.aggregate.rollup import aggregate
from monasca_common.pipeline.settings import spark_settings
from monasca_common.pipeline.spark.arrow import arrow_schema, ddl
from monasca_common.pipeline.spark.session import open_session
from monasca_common.pipeline.specification.specification import Specifications
from monasca_common.pipeline.windows import FUTURE_MS, PERIODS_MS, TimeBounds, period_start_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from oslo_config import cfg
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["envelopes", "merge", "partials", "rows", "session"]

PARTIAL_COLUMNS = tuple(name for name, _ in PARTIALS)
_ROWS = (
    *(("metric_id", "string"), ("name", "string"), ("timestamp", "timestamp"), ("value", "double")),
    *(("dimensions", "map<string, string>"), ("value_meta", "map<string, string>")),
)


def session(conf: cfg.ConfigOpts, name: str) -> SparkSession:
    """Open the session of an application ``name`` with the options of ``[spark]``. The workers use the Python of this
    process, unless ``PYSPARK_PYTHON`` names another.

    Raises `SparkUnavailable` if Spark does not start, for example because its master does not respond;
    `ConfigurationError` for an invalid option.
    """
    return open_session(spark_settings(conf), name)


def envelopes(frame: DataFrame) -> DataFrame:
    """Return metrics in columns as envelopes. ``frame`` has ``name`` (string), ``timestamp`` (a Spark timestamp, or a
    number of milliseconds since the epoch), ``value`` (a number) and ``dimensions`` (map of strings); it may have
    ``meta`` and ``value_meta`` (maps of strings), and ``partition`` (int) and ``offset`` (long), which order records
    with the same time. The result has ``partition``, ``offset`` and ``value`` (binary JSON).
    """
    from pyspark.sql import functions

    stamp = functions.col("timestamp")
    if dict(frame.dtypes)["timestamp"] in ("timestamp", "timestamp_ntz"):
        stamp = functions.unix_micros(stamp.cast("timestamp")) / 1000
    members = [functions.col(name) for name in ("dimensions", "value_meta") if name in frame.columns]
    metric = functions.struct(
        "name", stamp.alias("timestamp"), functions.col("value").cast("double").alias("value"), *members
    )
    whole = [metric.alias("metric"), *(functions.col(name) for name in ("meta",) if name in frame.columns)]
    # Some specifications require creation_time, but nothing is computed from it.
    created = functions.lit(int(time.time())).alias("creation_time")
    text = functions.to_json(functions.struct(*whole, created)).cast("binary").alias("value")
    return frame.select(*_place(frame), text)


def partials(frame: DataFrame, specifications: Specifications, bounds: TimeBounds | None = None) -> DataFrame:
    """Return the partials of metrics: one or more rows for each specification, window and group, which `merge`
    combines. ``frame`` has ``value`` (a metric envelope, binary or string), and optionally ``partition`` (int) and
    ``offset`` (long). Frames from Kafka, the archive and `envelopes` have these columns. ``bounds``: the accepted event
    times, by default from 1970 to ten minutes from now. Records that are not metrics or are out of bounds are not
    counted.
    """
    from pyspark.sql import functions

    bounds = bounds or TimeBounds(0, time.time_ns() // 1_000_000 + FUTURE_MS)
    decoder = RecordDecoder(pickle.dumps(specifications), bounds, _ignore, _ignore)
    read = frame.select(*_place(frame), functions.col("value").cast("binary").alias("value"))
    return read.mapInArrow(decoder, ddl(PARTIALS))


def merge(partial_frame: DataFrame, *others: DataFrame) -> DataFrame:
    """Merge the partials of all frames into one row for each specification, window and group. The frames must not share
    records, because a partial in two frames counts twice.
    """
    whole = functools.reduce(lambda one, other: one.unionByName(other), others, partial_frame)
    return whole.select(*PARTIAL_COLUMNS).repartition(*KEY).mapInArrow(_merged, ddl(PARTIALS))


def rows(partial_frame: DataFrame, specifications: Specifications) -> DataFrame:
    """Return the metrics of each period. ``partial_frame`` contains all partials of its periods, merged or not. The
    result has ``metric_id`` (the specification's), ``name``, ``timestamp`` (the start of the period), ``value``,
    ``dimensions`` and ``value_meta`` (maps of strings). One task holds all groups of a specification and period in
    memory. A quantity that is not finite and a rate that begins at zero are omitted. An action on the frame fails with
    a `ValueError` for partials of a specification that was not passed.
    """
    from pyspark.sql import functions

    daily = [each.id for each in specifications.transforms.values() if each.period == "daily"]
    length_ms = functions.when(functions.col("specification").isin(daily), PERIODS_MS["daily"]).otherwise(
        PERIODS_MS["hourly"]
    )
    start = functions.col("window_start") - functions.pmod(functions.col("window_start"), length_ms)
    grouped = partial_frame.select(*PARTIAL_COLUMNS).groupBy("specification", start.alias("period_start"))
    return grouped.applyInArrow(lambda table: _period_rows(specifications, table), ddl(_ROWS))


def _ignore(*_: object) -> None:
    """Ignore rejected records and their counts."""


def _place(frame: DataFrame) -> list[Column]:
    from pyspark.sql import functions

    kinds = {"partition": "int", "offset": "long"}
    return [
        (functions.col(name) if name in frame.columns else functions.lit(0)).cast(kinds[name]).alias(name)
        for name in kinds
    ]


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from partial_batches(merged(partials_of(batches, group_of_text)).items())


def _period_rows(specifications: Specifications, table: pa.Table) -> pa.Table:
    """Compute the rows from the partials of one specification and period."""
    import pyarrow as pa

    found = list(partials_of(table.select(PARTIAL_COLUMNS).to_batches(), group_of_text))
    key = found[0][0]
    transform = specifications.find(key.specification_id)
    if transform is None:
        raise ValueError(
            f"there are partials of {key.specification_id}, which is not among the specifications: pass the "
            f"specifications with which the partials were computed, or omit these partials"
        )
    period_ms = period_start_ms(transform.period, key.window_ms)
    computed = [
        {
            "metric_id": transform.metric_id,
            "name": transform.name,
            "timestamp": datetime.fromtimestamp(period_ms / 1000, UTC),
            "value": usage.quantity + 0.0,
            "dimensions": list(dimensions(transform, usage).items()),
            "value_meta": list(value_meta(usage, provisional=False).items()),
        }
        for usage in aggregate(transform, found).usages
    ]
    return pa.Table.from_pylist(computed, schema=arrow_schema(_ROWS))
