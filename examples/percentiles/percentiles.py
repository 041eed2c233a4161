# SPDX-License-Identifier: Apache-2.0
"""Operations, a usage and a setter that another package adds to the pipeline of monasca-common.

A percentile does not follow from count, sum and extremes. So its operation has a sketch: DDSketch counts quantities in
bins that grow by 2 %, which bounds the relative error to 1 %, and adding two such counts is exact. The same records
therefore make the same bytes, however they were split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddsketch import DDSketch
from ddsketch.pb import ddsketch_pb2 as proto
from ddsketch.pb.proto import DDSketchProto

from monasca_common.pipeline import (
    Aggregate,
    OperationComponent,
    Partial,
    SetterComponent,
    Sketch,
    Transform,
    Usage,
    UsageComponent,
)


def of(quantities: Sequence[float]) -> bytes:
    sketch = DDSketch()
    for quantity in quantities:
        sketch.add(quantity)
    return _dumped(sketch)


def merge(states: Sequence[bytes]) -> bytes:
    whole, *others = map(_loaded, states)
    for other in others:
        whole.merge(other)
    return _dumped(whole)


def percentile(percent: float) -> OperationComponent:
    def fetch(partial: Partial) -> float:
        return float(_loaded(partial.state).get_quantile_value(percent / 100))

    return OperationComponent(fetch, sketch=Sketch(of, merge))


def _loaded(state: bytes) -> DDSketch:
    return DDSketchProto.from_proto(proto.DDSketch.FromString(state))


def _dumped(sketch: DDSketch) -> bytes:
    whole = DDSketchProto.to_proto(sketch)
    for store in (whole.positiveValues, whole.negativeValues):
        # How many empty bins there are at the ends depends on the order of what was added.
        bins = list(store.contiguousBinCounts)
        filled = [index for index, count in enumerate(bins) if count]
        store.contiguousBinIndexOffset += filled[0] if filled else -store.contiguousBinIndexOffset
        store.contiguousBinCounts[:] = bins[filled[0] : filled[-1] + 1] if filled else []
    state: bytes = whole.SerializeToString(deterministic=True)
    return state


P50, P95, P99 = percentile(50), percentile(95), percentile(99)


def counted(transform: Transform, partials: Mapping[tuple[str, ...], Partial]) -> Aggregate:
    """How many records each group has."""
    rows = [
        Usage(
            tuple(zip(transform.group_by, group, strict=True)),
            "NA",
            float(partial.count),
            partial.count,
            partial.first_ms,
            partial.last_ms,
        )
        for group, partial in sorted(partials.items())
    ]
    return Aggregate(tuple(rows))


COUNT_RECORDS = UsageComponent(counted, operations=())


def scaled(transform: Transform, rows: Sequence[Usage]) -> list[Usage]:
    factor = float(transform.parameters["scale_by"])
    return [replace(row, quantity=row.quantity * factor) for row in rows]


SCALE_QUANTITY = SetterComponent(scaled, parameters=("scale_by",))
