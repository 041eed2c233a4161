# SPDX-License-Identifier: Apache-2.0
"""Finds valid contents of specifications that are probably mistakes. They are logged at startup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import (
    CALCULATE_RATE,
    FETCH_QUANTITY_UTIL,
    IDLE_EVENT_TYPE,
    QUANTITY_EVENT_TYPE,
    PreTransform,
    Transform,
)


def warnings(pre_transforms: Sequence[PreTransform], transforms: Mapping[str, Transform]) -> Iterator[str]:
    outputs = {transform.name: metric_id for metric_id, transform in transforms.items()}
    for row in pre_transforms:
        if row.event_type in outputs:
            yield (
                f"event type {row.event_type}: {outputs[row.event_type]} writes metrics of that name, so it is "
                "excluded as input; give the output another name"
            )
    for metric_id, transform in transforms.items():
        fed = {row.event_type for row in pre_transforms if metric_id in row.metric_ids}
        yield from (f"{metric_id}: {text}" for text in _of_transform(transform, fed))


def _of_transform(transform: Transform, fed: set[str]) -> Iterator[str]:
    if not fed:
        yield "no pre-transform row names this transform, so it never receives a record"
    elif transform.usage == FETCH_QUANTITY_UTIL:
        used = {transform.parameters[QUANTITY_EVENT_TYPE], transform.parameters[IDLE_EVENT_TYPE]}
        yield from (
            f"this transform needs {missing}, but no pre-transform row sends it" for missing in sorted(used - fed)
        )
        yield from (f"{unused} is sent to this transform, which does not use it" for unused in sorted(fed - used))
    if transform.rollup_operation or transform.usage == CALCULATE_RATE:
        for column in transform.rollup_by:
            if column not in transform.group_by:
                yield f"it is rolled up by {column}, which is NA, because its usages are not grouped by it"
    grouped = {columns.map_and_key(column)[1]: column for column in transform.group_by}
    for dimension in transform.dimensions:
        if dimension.column in columns.BARE and dimension.key in grouped:
            yield f"the dimension {dimension.key} is equal in all rows: write {grouped[dimension.key]} instead"
    shown = {dimension.column for dimension in transform.dimensions}
    for column in sorted(transform.distinguishes - shown):
        yield f"rows that differ only in {column} share all dimensions and replace each other: add it to dimension_list"
