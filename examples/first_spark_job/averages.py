# SPDX-License-Identifier: Apache-2.0
"""Compute the hourly average of each host's CPU, in a Spark job on this machine."""

import json
from datetime import UTC, datetime

from oslo_config import cfg

from monasca_common import pipeline
from monasca_common.pipeline import dataframes

SELECT = {"event_type": "cpu.percent", "metric_id_list": ["cpu_average"], "required_raw_fields_list": []}
AVERAGE = {
    "metric_id": "cpu_average",
    "aggregation_params_map": {
        "aggregation_pipeline": {
            "source": "streaming",
            "usage": "fetch_quantity",
            "setters": ["set_aggregated_metric_name", "set_aggregated_period"],
            "insert": ["insert_data"],
        },
        "usage_fetch_operation": "avg",
        "aggregation_group_by_list": ["host"],
        "dimension_list": ["host"],
        "aggregated_metric_name": "cpu.percent_avg",
        "aggregation_period": "hourly",
    },
}
METRICS = [
    ("cpu.percent", datetime(2026, 1, 31, 6, minute, tzinfo=UTC), value, {"hostname": host})
    for minute, host, value in ((0, "web1", 10.0), (20, "web1", 30.0), (40, "web1", 50.0), (5, "web2", 7.0))
]

specifications = pipeline.read(
    pipeline.JsonRows("pre-transforms", [json.dumps(SELECT)]), pipeline.JsonRows("transforms", [json.dumps(AVERAGE)])
)
conf = cfg.ConfigOpts()
conf(project="averages")
spark = dataframes.session(conf, "averages")
metrics = spark.createDataFrame(
    METRICS, "name string, timestamp timestamp, value double, dimensions map<string, string>"
)

partials = dataframes.partials(dataframes.envelopes(metrics), specifications)
for row in dataframes.rows(partials, specifications).sort("dimensions.host").collect():
    print(f"{row.name} of {row.dimensions['host']}: {row.value} from {row.value_meta['record_count']} records")
spark.stop()
