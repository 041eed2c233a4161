# SPDX-License-Identifier: Apache-2.0
"""Compute the spread of each host's latencies in each hour, in a custom Spark job.

First install the package with the operation ``spread`` (`pip install examples/spread`), here and on the executors.
Arguments: ``--config-file F`` with ``[spark] master``; a folder of the archive, such as
s3a://bucket/archive/topic=metrics; and the folder to write to.
"""

import sys

from oslo_config import cfg
from pyspark.sql import DataFrame, SparkSession

from monasca_common import pipeline
from monasca_common.pipeline import dataframes

PRE_TRANSFORMS = """
{"event_type": "http.latency_ms", "metric_id_list": ["latency_spread"], "required_raw_fields_list": []}
"""
TRANSFORMS = """
{"metric_id": "latency_spread", "aggregation_params_map": {"aggregation_pipeline": {"source": "streaming", "usage": "fetch_quantity", "setters": ["scale_quantity", "set_aggregated_metric_name", "set_aggregated_period"], "insert": ["insert_data"]}, "usage_fetch_operation": "spread", "scale_by": "0.001", "aggregation_group_by_list": ["host"], "dimension_list": ["host"], "aggregated_metric_name": "http.latency_spread_s", "aggregation_period": "hourly"}}
"""  # noqa: E501


def specifications() -> pipeline.Specifications:
    """Return the specifications. Raises `pipeline.InvalidSpecifications`, which lists all errors, including unknown
    operations."""
    return pipeline.read(
        pipeline.JsonRows("pre-transforms", PRE_TRANSFORMS.splitlines()),
        pipeline.JsonRows("transforms", TRANSFORMS.splitlines()),
    )


def from_archive(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.parquet(folder).select("partition", "offset", "value")


def from_columns(spark: SparkSession, table: str) -> DataFrame:
    """Return your own table as envelopes, with the columns that `dataframes.envelopes` requires."""
    return dataframes.envelopes(spark.table(table))


def spreads(*metrics: DataFrame) -> DataFrame:
    """Return one row per host and hour. The frames must contain different records."""
    specs = specifications()
    partials = dataframes.merge(*(dataframes.partials(frame, specs) for frame in metrics))
    return dataframes.rows(partials, specs)


def main() -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts([cfg.StrOpt(name, positional=True, required=True) for name in ("source", "target")])
    conf(sys.argv[1:], project="latencies")
    spark = dataframes.session(conf, "latencies")
    spreads(from_archive(spark, conf.source)).write.parquet(conf.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
