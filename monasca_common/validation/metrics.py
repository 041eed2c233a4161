# SPDX-License-Identifier: Apache-2.0
"""Checks metrics as Python objects, for monasca-api and monasca-agent, with the limits of `monasca_common.models`. It
accepts and refuses the same metrics as monasca-common 3. The API of this library is stricter: it also refuses NUL and
lone surrogates, which databases cannot store (`monasca_common.models.metric.parse_post`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from monasca_common.models.limits import MOST_META_BYTES, MOST_META_ENTRIES, POSTED, TextRule


class InvalidMetric(ValueError):
    """Base class of this module's errors: the object is not a metric, or breaks a rule for metrics."""


class InvalidMetricName(InvalidMetric):
    """The name is missing, not a string, empty, too long, or contains a forbidden character."""


class InvalidDimensionKey(InvalidMetric):
    """The dimensions are not an object, or a key breaks a rule."""


class InvalidDimensionValue(InvalidMetric):
    """The value of a dimension breaks a rule."""


class InvalidValue(InvalidMetric):
    """The value is missing or not a finite number."""


class InvalidValueMeta(InvalidMetric):
    """value_meta is not an object, is not JSON, or is too large."""


class InvalidTimeStamp(InvalidMetric):
    """The time is missing or not a number."""


def validate(metrics: Any) -> None:
    """Check a metric, or each metric of a list. A metric has ``"name"``, ``"value"`` and ``"timestamp"``, and
    optionally ``"dimensions"`` and ``"value_meta"``. Raises `InvalidMetric`, whose text names the metric."""
    for metric in metrics if isinstance(metrics, list) else [metrics]:
        validate_metric(metric)


def validate_metric(metric: Any) -> None:
    """Check one metric. Raises `InvalidMetric`, whose text names the metric."""
    if not isinstance(metric, Mapping):
        raise InvalidMetric(f"a metric must be an object with name, value and timestamp, not {_shown(metric)}")
    name = _member(metric, "name", InvalidMetricName)
    validate_name(name)
    try:
        validate_value(_member(metric, "value", InvalidValue))
        validate_timestamp(_member(metric, "timestamp", InvalidTimeStamp))
        if "dimensions" in metric:
            validate_dimensions(metric["dimensions"])
        if "value_meta" in metric:
            validate_value_meta(metric["value_meta"])
    except InvalidMetric as error:
        raise type(error)(f"{error} (of metric {name})") from error


def validate_name(name: Any) -> None:
    """Check a metric's name. Raises `InvalidMetricName`."""
    _check(name, POSTED.name, "metric name", InvalidMetricName)


def validate_value(value: Any) -> None:
    """Check that a value is a finite number or a boolean. Raises `InvalidValue`."""
    if not isinstance(value, int | float) or not _is_finite(value):
        raise InvalidValue(f"value {_shown(value)} must be a finite number")


def validate_timestamp(timestamp: Any) -> None:
    """Check that a timestamp is a number; the API checks its unit and range. Raises `InvalidTimeStamp`."""
    if not isinstance(timestamp, int | float):
        raise InvalidTimeStamp(f"timestamp {_shown(timestamp)} must be a number")


def validate_dimensions(dimensions: Any) -> None:
    """Check the keys and values of dimensions. Raises `InvalidDimensionKey` or `InvalidDimensionValue`."""
    if not isinstance(dimensions, Mapping):
        raise InvalidDimensionKey(f"dimensions {_shown(dimensions)} must be an object")
    for key, value in dimensions.items():
        validate_dimension_key(key)
        validate_dimension_value(key, value)


def validate_dimension_key(key: Any) -> None:
    """Check a dimension's key. Raises `InvalidDimensionKey`."""
    _check(key, POSTED.key, "dimension key", InvalidDimensionKey)


def validate_dimension_value(key: Any, value: Any) -> None:
    """Check a dimension's value; only the error text uses ``key``. Raises `InvalidDimensionValue`."""
    _check(value, POSTED.value, f"value of dimension {_shown(key)}:", InvalidDimensionValue)


def validate_value_meta(value_meta: Any) -> None:
    """Check that value_meta is ``None``, or an object within the length limit as ASCII JSON. Raises
    `InvalidValueMeta`."""
    if value_meta is None:
        return
    if not isinstance(value_meta, Mapping):
        raise InvalidValueMeta(f"value_meta {_shown(value_meta)} must be an object")
    if len(value_meta) > MOST_META_ENTRIES:
        raise InvalidValueMeta(f"value_meta has {len(value_meta)} entries: at most {MOST_META_ENTRIES} are allowed")
    for key in value_meta:
        # Only lengths are limited; all characters are allowed.
        _check(key, POSTED.meta_key, "value_meta key", InvalidValueMeta)
    try:
        size = len(json.dumps(value_meta, allow_nan=False, default=_as_text))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueMeta(f"value_meta cannot be written as JSON: {error}") from error
    if size > MOST_META_BYTES:
        raise InvalidValueMeta(f"value_meta has {size} characters as JSON: at most {MOST_META_BYTES} are allowed")


def _member(metric: Mapping[str, Any], name: str, error: type[InvalidMetric]) -> Any:
    if name not in metric:
        raise error(f"the metric has no {name}: add one")
    return metric[name]


def _check(text: Any, rule: TextRule, what: str, error: type[InvalidMetric]) -> None:
    if not isinstance(text, str):
        raise error(f"{what} {_shown(text)} must be a string")
    if not rule.least <= len(text) <= (rule.most or len(text)):
        raise error(f"{what} {_shown(text)} has {len(text)} characters: {rule.least} to {rule.most} are allowed")
    if found := sorted(set(text).intersection(rule.forbidden)):
        raise error(f"{what} {_shown(text)} has {found}: none of {rule.forbidden!r} is allowed")
    if rule.prefix and text.startswith(rule.prefix):
        raise error(f"{what} {_shown(text)} begins with {rule.prefix!r}: such keys are reserved")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False


def _as_text(value: Any) -> str:
    """Return the text that Python's JSON libraries write for a value of a type that JSON lacks."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
