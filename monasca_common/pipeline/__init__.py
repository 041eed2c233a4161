# SPDX-License-Identifier: Apache-2.0
"""Aggregation of metrics. Importing it requires neither Spark nor a database."""

from monasca_common.models.readings import Reading, exact_sum
from monasca_common.pipeline.aggregate.output import OutputMessage, output
from monasca_common.pipeline.aggregate.partials import (
    Accumulator,
    Partial,
    PartialKey,
    group_of_text,
    group_text,
    merged,
)
from monasca_common.pipeline.aggregate.records import RecordReader, Records
from monasca_common.pipeline.aggregate.rollup import aggregate
from monasca_common.pipeline.aggregate.usages import Aggregate, Usage
from monasca_common.pipeline.components import OperationComponent, SetterComponent, UsageComponent
from monasca_common.pipeline.errors import InvalidSpecifications, RowFault
from monasca_common.pipeline.rejection import Rejection
from monasca_common.pipeline.specification.reader import JsonRows, load, read
from monasca_common.pipeline.specification.specification import PreTransform, Publisher, Specifications, Transform
from monasca_common.pipeline.windows import TimeBounds, period_start_ms, window_start_ms

__all__ = [
    "Accumulator",
    "Aggregate",
    "InvalidSpecifications",
    "JsonRows",
    "OperationComponent",
    "OutputMessage",
    "Partial",
    "PartialKey",
    "PreTransform",
    "Publisher",
    "Reading",
    "RecordReader",
    "Records",
    "Rejection",
    "RowFault",
    "SetterComponent",
    "Specifications",
    "TimeBounds",
    "Transform",
    "Usage",
    "UsageComponent",
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
