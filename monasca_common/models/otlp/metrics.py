# SPDX-License-Identifier: Apache-2.0
"""OTLP data points as series of metrics, named by Prometheus' convention.

A gauge or a sum is the series ``name``. A histogram is ``name_bucket`` with the dimension ``le`` and cumulative counts,
``name_count`` and ``name_sum``. An exponential histogram has the same series, with merged buckets, so that there are
few bounds, which are the same for all points. A summary is ``name`` with the dimension ``quantile``, ``name_count`` and
``name_sum``.

Values with delta temporality are stored unchanged, in series with the dimension `TEMPORALITY`. The time at which a sum,
a histogram or a summary started to count is in value_meta (`START`); a new start time indicates a reset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    ExponentialHistogramDataPoint,
    Gauge,
    HistogramDataPoint,
    NumberDataPoint,
    SummaryDataPoint,
)

from monasca_common.models import json_text
from monasca_common.models.limits import too_many_dimensions
from monasca_common.models.otlp.attributes import MOST_TEXT, common_dimensions, dimensions
from monasca_common.models.otlp.requests import NS_PER_MS, ItemCount
from monasca_common.models.samples import NO_META, STALE_META, Samples, series_head, shown

TEMPORALITY = "otel.temporality"
START = "start_time_ms"
MOST_BUCKETS = 1000  # the maximum number of buckets of a histogram, and of quantiles of a summary
#: The maximum scale (each bound is 1.09 times the previous one) and number of buckets of a stored exponential
#: histogram.
MOST_SCALE, MOST_EXPONENTIAL_BUCKETS = 3, 160
_LEAST_SCALE = -10  # OpenTelemetry's minimum; with a smaller scale there is a single bucket


class _Sample(NamedTuple):
    """A value of one series of a data point. ``label``: a dimension of this series only."""

    suffix: str
    label: tuple[str, str] | None
    value: float


class _PointRefused(ValueError):
    """A data point breaks the rules that are its arguments."""


def add_samples(request: ExportMetricsServiceRequest, attributes: frozenset[str], samples: Samples) -> None:
    """Add the series of each data point to ``samples``, or refuse the point. ``attributes``: see `common_dimensions`.

    A point without a recorded value ends its series, like a staleness marker. Raises `InvalidEnvelope` if the request
    is too large.
    """
    items = ItemCount()
    for of_resource in items.of(request.resource_metrics):
        of_all = common_dimensions(of_resource.resource, attributes, items)
        for of_scope in items.of(of_resource.scope_metrics):
            common = of_all | common_dimensions(of_scope.scope, attributes, items)
            for metric in items.of(of_scope.metrics):
                name, data = metric.name[:MOST_TEXT], getattr(metric, metric.WhichOneof("data") or "gauge")
                for point in items.of(data.data_points):
                    try:
                        values = list(_values(name, data, point, common, samples))
                    except _PointRefused as refused:
                        samples.refuse(f"metric {shown(name)}", refused.args)
                        continue
                    time_ms, meta = point.time_unix_nano // NS_PER_MS, _meta(data, point)
                    for head, value in values:
                        samples.add(head, time_ms, value, meta)


def _values(
    name: str, data: Any, point: Any, common: Mapping[str, str], samples: Samples
) -> Iterator[tuple[bytes, float]]:
    """Yield the series of a data point, each with its value."""
    if len(point.attributes) > samples.rules.max_dimensions:
        rule = too_many_dimensions(len(point.attributes), samples.rules.max_dimensions)
        raise _PointRefused(f"the attributes: {rule}")
    if not point.time_unix_nano:
        raise _PointRefused("time_unix_nano is required")
    if fault := samples.rules.allowed.fault(point.time_unix_nano // NS_PER_MS):
        raise _PointRefused(f"time_unix_nano {fault}")
    own = {**common, **dimensions(point.attributes)}
    temporality = getattr(data, "aggregation_temporality", None)
    if temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED:
        raise _PointRefused("aggregation_temporality is required: cumulative or delta")
    if temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA:
        own[TEMPORALITY] = "delta"
    for sample in _SAMPLES[type(point)](point):
        labelled = own if sample.label is None else {**own, sample.label[0]: sample.label[1]}
        if faults := samples.faults(name + sample.suffix, labelled):
            raise _PointRefused(*faults)
        yield series_head(name + sample.suffix, labelled), math.nan if _has_no_value(point) else sample.value


def _meta(data: Any, point: Any) -> bytes:
    if _has_no_value(point):
        return STALE_META
    if not point.start_time_unix_nano or isinstance(data, Gauge):
        return NO_META
    return json_text.write({START: str(point.start_time_unix_nano // NS_PER_MS)})


def _has_no_value(point: Any) -> bool:
    return bool(point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK)


def _number(point: NumberDataPoint) -> Iterator[_Sample]:
    which = point.WhichOneof("value")
    if which is None and not _has_no_value(point):
        raise _PointRefused("value is required: as_double or as_int")
    yield _Sample("", None, float(getattr(point, which or "as_double")))


def _histogram(point: HistogramDataPoint) -> Iterator[_Sample]:
    bounds, counts = point.explicit_bounds, point.bucket_counts
    _check_number("bucket_counts", len(counts))
    if len(counts) != len(bounds) + 1 and (counts or bounds):
        raise _PointRefused(
            f"bucket_counts has {len(counts)} entries for {len(bounds)} bounds: send one more entry than bounds"
        )
    ascending = all(lower < upper for lower, upper in pairwise(bounds))
    if not ascending or not all(map(math.isfinite, bounds)):
        raise _PointRefused("explicit_bounds must be finite and ascending")
    return _distribution(point, "le", _cumulative(zip(bounds, counts, strict=False)))


def _exponential(point: ExponentialHistogramDataPoint) -> Iterator[_Sample]:
    if point.scale < _LEAST_SCALE:
        raise _PointRefused(f"scale is {point.scale}: it must be at least {_LEAST_SCALE}")
    shift = max(0, point.scale - MOST_SCALE)
    while True:
        negative, positive = _merged(point.negative, shift), _merged(point.positive, shift)
        if len(negative) + len(positive) <= MOST_EXPONENTIAL_BUCKETS:
            break
        shift += 1
    scale = point.scale - shift
    bounds = [(0.0 - _power(index, scale), negative[index]) for index in reversed(negative)]  # never -0.0
    bounds.append((max(0.0, point.zero_threshold), point.zero_count))
    bounds += [(_power(index + 1, scale), count) for index, count in positive.items()]
    return _distribution(point, "le", _cumulative(bounds))


def _merged(buckets: ExponentialHistogramDataPoint.Buckets, shift: int) -> dict[int, int]:
    """Return counts by index, in ascending order; each bucket merges ``2 ** shift`` buckets of the point."""
    _check_number("bucket_counts", len(buckets.bucket_counts))
    merged: dict[int, int] = {}
    for index, count in enumerate(buckets.bucket_counts, buckets.offset):
        merged[index >> shift] = merged.get(index >> shift, 0) + count
    return merged


def _power(index: int, scale: int) -> float:
    """Return the lower bound of the bucket ``index``."""
    exponent = math.ldexp(index, -scale)
    return math.inf if exponent >= 1024 else 2.0**exponent


def _cumulative(bounds: Iterable[tuple[float, int]]) -> dict[float, float]:
    total, found, greatest = 0, {}, -math.inf
    for bound, count in bounds:
        total, greatest = total + count, max(bound, greatest)
        found[greatest] = float(total)
    return found


def _summary(point: SummaryDataPoint) -> Iterator[_Sample]:
    _check_number("quantile_values", len(point.quantile_values))
    return _distribution(point, "quantile", {each.quantile: each.value for each in point.quantile_values})


def _distribution(point: Any, key: str, by_label: Mapping[float, float]) -> Iterator[_Sample]:
    """Yield the series of a histogram (``key`` is le) or of a summary."""
    for number, value in by_label.items():
        if number != math.inf or key != "le":
            # The label is the shortest text of the number, without .0, as Prometheus' client libraries write it.
            yield _Sample("_bucket" if key == "le" else "", (key, repr(number).removesuffix(".0")), value)
    if key == "le":
        yield _Sample("_bucket", (key, "+Inf"), float(point.count))
    yield _Sample("_count", None, float(point.count))
    if isinstance(point, SummaryDataPoint) or point.HasField("sum"):
        yield _Sample("_sum", None, point.sum)


def _check_number(where: str, count: int) -> None:
    if count > MOST_BUCKETS:
        raise _PointRefused(f"{where} has {count} entries: at most {MOST_BUCKETS} are allowed")


_SAMPLES: Mapping[type, Callable[[Any], Iterator[_Sample]]] = {
    NumberDataPoint: _number,
    HistogramDataPoint: _histogram,
    ExponentialHistogramDataPoint: _exponential,
    SummaryDataPoint: _summary,
}
