# SPDX-License-Identifier: Apache-2.0
"""Aggregates metrics. Importing this package requires neither Spark nor a database."""

from monasca_common.pipeline.aggregate.partials import Partial
from monasca_common.pipeline.aggregate.usages import Aggregate, Usage
from monasca_common.pipeline.components import OperationComponent, SetterComponent, UsageComponent
from monasca_common.pipeline.errors import InvalidSpecifications
from monasca_common.pipeline.specification.reader import JsonRows, load, read
from monasca_common.pipeline.specification.specification import Specifications, Transform
from monasca_common.pipeline.windows import TimeBounds

__all__ = [
    "Aggregate",
    "InvalidSpecifications",
    "JsonRows",
    "OperationComponent",
    "Partial",
    "SetterComponent",
    "Specifications",
    "TimeBounds",
    "Transform",
    "Usage",
    "UsageComponent",
    "load",
    "read",
]
