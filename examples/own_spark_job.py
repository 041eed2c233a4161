# SPDX-License-Identifier: Apache-2.0
"""The spread of each host's latencies in each hour, by a Spark job of your own.

Install the package that has the operation ``spread`` first (`pip install examples/spread`), here and on the executors.
The arguments: ``--config-file F``, which has ``[spark] master``; a folder of the archive, such as
s3a://bucket/archive/topic=metrics; and one to write to.
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
    """Raises `pipeline.InvalidSpecifications`, which names each fault, unknown operations among them."""
    return pipeline.read(
        pipeline.JsonRows("pre-transforms", PRE_TRANSFORMS.splitlines()),
        pipeline.JsonRows("transforms", TRANSFORMS.splitlines()),
    )


def from_archive(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.parquet(folder).select("partition", "offset", "value")


def from_columns(spark: SparkSession, table: str) -> DataFrame:
    """A table of your own, with the columns that `dataframes.envelopes` asks for."""
    return dataframes.envelopes(spark.table(table))


def spreads(*metrics: DataFrame) -> DataFrame:
    """One row for each host and hour; the frames have different records."""
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
