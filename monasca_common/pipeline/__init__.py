# SPDX-License-Identifier: Apache-2.0
"""Aggregation of metrics. What is imported here needs neither Spark nor a database."""

from monasca_common.pipeline.errors import Fault, InvalidSpecifications
from monasca_common.pipeline.output import Output, Publisher, output
from monasca_common.pipeline.partials import (
    Accumulator,
    Partial,
    PartialKey,
    Reading,
    exact_sum,
    group_of_text,
    group_text,
    merged,
)
from monasca_common.pipeline.records import RecordReader, Records, Rejection
from monasca_common.pipeline.rollup import Aggregate, aggregate
from monasca_common.pipeline.specification import PreTransform, Specifications, Transform
from monasca_common.pipeline.specification_reader import Rows, load, read
from monasca_common.pipeline.usages import Usage
from monasca_common.pipeline.windows import TimeBounds, period_start_ms, window_start_ms

__all__ = [
    "Accumulator",
    "Aggregate",
    "Fault",
    "InvalidSpecifications",
    "Output",
    "Partial",
    "PartialKey",
    "PreTransform",
    "Publisher",
    "Reading",
    "RecordReader",
    "Records",
    "Rejection",
    "Rows",
    "Specifications",
    "TimeBounds",
    "Transform",
    "Usage",
    "aggregate",
    "exact_sum",
    "group_of_text",
    "group_text",
    "load",
    "merged",
    "output",
    "period_start_ms",
    "read",
    "window_start_ms",
]
