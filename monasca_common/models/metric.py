# SPDX-License-Identifier: Apache-2.0
"""Metrics: from posted bodies to envelopes (the API), and from envelopes to rows (the persister).

An envelope: ``{"metric": {"name", "dimensions": {}, "timestamp": <ms>, "value", "value_meta": null | {}},
"meta": {"tenantId", "region"}, "creation_time": <s>}``, the last with milliseconds as a fraction. Other members are
ignored. ``value`` is a number, or the text of a value that is not finite (`numbers.BY_TEXT`); posts need a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from sys import intern
from typing import Any

import msgspec

from monasca_common.models import json_text, times
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.fields import Fields
from monasca_common.models.limits import (
    LATEST_MS,
    MOST_DIMENSIONS,
    MOST_META_BYTES,
    MOST_META_ENTRIES,
    POSTED,
    REGION,
    STORED,
    TENANT,
    Limits,
)
from monasca_common.models.numbers import BY_TEXT, ValueText
from monasca_common.models.post import (
    DEFAULT_RULES,
    MOST_ELEMENTS,
    ParsedPost,
    PostRules,
    check_count,
    envelopes_of,
    members_of,
    parse_each,
    split,
)
from monasca_common.models.rows import Decoded, Measurement, good_indices
from monasca_common.models.seen import Seen
from monasca_common.models.series import Series, series_id

_LATEST_S = LATEST_MS // 1000
_NUMBERS = {int, float}
_REFUSED = (*json_text.UNREADABLE, TypeError)  # TypeError: a message without a value
_BLOCK = 1000  # messages per pass: enough to amortize its cost, and few enough to fit into the processor's cache
_OBJECT = re.compile(rb"[ \t\r\n]*\{")
_ARRAY = re.compile(rb"[ \t\r\n]*\[")

RESERVED = "which the database reserves for its own rows: use another name"

# Creating a named tuple from a tuple takes a third less time than calling its class.
_measurement: Callable[[tuple[Series, int, float, str | None, int]], Measurement] = partial(tuple.__new__, Measurement)


# gc=False, because the objects are not in reference cycles, and the garbage collector would scan 20,000 of them in each
# batch. Dimensions and meta stay text, because equal texts belong to equal series.


class _StoredMetric(msgspec.Struct, gc=False):
    name: str
    timestamp: int | float
    value: float | ValueText
    dimensions: msgspec.Raw = msgspec.Raw(b"{}")
    value_meta: dict[str, Any] | None = None


class _Envelope(msgspec.Struct, gc=False):
    metric: _StoredMetric
    meta: msgspec.Raw
    creation_time: int | float | None = None


class _PostedMetric(msgspec.Struct, gc=False, kw_only=True):
    """Members are in the order of the message. ``dimensions`` and ``value_meta`` are replaced by normalised text."""

    name: str
    dimensions: msgspec.Raw = msgspec.Raw(b"{}")
    timestamp: int | float
    value: float
    value_meta: dict[str, str] | None = None


class _Meta(msgspec.Struct, gc=False):
    tenant: str = msgspec.field(name="tenantId")
    region: str | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_posted = msgspec.json.Decoder(_PostedMetric).decode
_decode_posted_list = msgspec.json.Decoder(list[_PostedMetric]).decode
_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_dimensions = msgspec.json.Decoder(dict[str, str] | None).decode


class MetricDecoder:
    """Decodes values of messages into `Measurement` rows, and caches ``max_series`` series (about 1 kB each).

    The limits are `limits.STORED` and ``max_dimensions``. Values of value_meta that are not strings become JSON text; a
    missing creation_time is version 0; a missing region is ``""``; ``-0.0`` is stored as ``0.0``. Not thread-safe. A
    cached series depends only on its text, so it never becomes stale.
    """

    def __init__(self, max_series: int = 200_000, *, max_dimensions: int = MOST_DIMENSIONS) -> None:
        self._max_dimensions = max_dimensions
        self._series: Seen[tuple[str, bytes, bytes], Series] = Seen(max_series, max_entry_bytes=4096)

    def decode_all(self, values: Sequence[bytes | None]) -> Decoded[Measurement]:
        """Decode messages; those that break a rule are checked again to collect all violations."""
        rows: list[Measurement] = []
        errors: dict[int, InvalidEnvelope] = {}
        for start in range(0, len(values), _BLOCK):
            block: Sequence[Any] = values[start : start + _BLOCK]
            try:
                rows += self._measurements(block)
            except _REFUSED:
                for index, value in enumerate(block, start):
                    try:
                        rows += self._measurements((value,))
                    except _REFUSED:
                        errors[index] = _stored_error(value, self._max_dimensions)
        return Decoded(rows, good_indices(len(values), errors), errors)

    def _measurements(self, values: Sequence[bytes]) -> list[Measurement]:
        """Return the rows. Raise one of `_REFUSED` if a message breaks a rule.

        Columns are built one by one, mostly in C, which takes a third less time than a loop over messages.
        """
        envelopes = list(map(_decode_envelope, values))
        metrics = [envelope.metric for envelope in envelopes]
        keys = [
            (metric.name, bytes(metric.dimensions), bytes(envelope.meta))
            for metric, envelope in zip(metrics, envelopes, strict=True)
        ]
        find = self._series.find
        series = list(map(find, keys))
        if not all(series):  # look the key up again, because an earlier key of the block may be the same
            series = [cached or find(key) or self._resolve(key) for cached, key in zip(series, keys, strict=True)]
        times_ms = [metric.timestamp for metric in metrics]
        if min(times_ms) < 0 or max(times_ms) > LATEST_MS:
            raise ValueError(times.NOT_A_TIME)
        try:
            numbers = [metric.value + 0.0 for metric in metrics]  # type: ignore[operator]
        except TypeError:
            numbers = [_number(metric.value) for metric in metrics]
        metas = [_stored_meta(metric.value_meta) if metric.value_meta else None for metric in metrics]
        versions = _versions([envelope.creation_time for envelope in envelopes])
        # No series is None now.
        return list(map(_measurement, zip(series, map(int, times_ms), numbers, metas, versions, strict=True)))  # type: ignore[arg-type]

    def _resolve(self, key: tuple[str, bytes, bytes]) -> Series:
        name, dimensions_text, meta_text = key
        meta = _decode_meta(meta_text)
        region = meta.region or ""
        dimensions = _decode_dimensions(dimensions_text) or {}
        if len(dimensions) > self._max_dimensions or not STORED.keep(name, dimensions):
            raise ValueError("breaks a limit")
        if any(TENANT.faults(meta.tenant)) or any(REGION.faults(region)):
            raise ValueError("breaks a limit")
        # All series together have only a few distinct keys.
        dimensions = {intern(dimension): value for dimension, value in dimensions.items()}
        series = Series(series_id(meta.tenant, region, name, dimensions), meta.tenant, region, name, dimensions)
        self._series.keep(key, series, len(name) + len(dimensions_text) + len(meta_text))
        return series


def _number(value: float | ValueText) -> float:
    return BY_TEXT[value] if isinstance(value, str) else value + 0.0


def _versions(created: list[Any]) -> list[int]:
    """Return `times.version` of each value, without calling it for plain numbers."""
    if set(map(type, created)) <= _NUMBERS and min(created) >= 0 and max(created) <= _LATEST_S:
        return [round(seconds * 1000) for seconds in created]
    return list(map(times.version, created))


def parse_post(body: bytes, rules: PostRules = DEFAULT_RULES) -> ParsedPost:
    """Parse a metric or an array of metrics. The limits are `limits.POSTED`.

    ``valid`` contains ``{"name", "dimensions", "timestamp", "value", "value_meta"}``, the timestamp in integer ms.
    Raises `Unreadable`, and `InvalidEnvelope` if the body is neither object nor array, or has too many elements.
    """
    try:
        metrics = [_decode_posted(body)] if _OBJECT.match(body) else _decode_posted_list(body)
        valid = _normalised(metrics[:MOST_ELEMENTS], rules)
    except _REFUSED:
        return _parse_each(body, partial(_parse_element, rules=rules))
    check_count(len(metrics))
    return ParsedPost(valid, list(range(len(valid))), len(valid))


def _parse_each(body: bytes, parse: Callable[[bytes], bytes]) -> ParsedPost:
    if _OBJECT.match(body):
        members_of(body)
        return parse_each([body], parse, lambda _: "")
    if not _ARRAY.match(body):
        json_text.read(body)
        raise InvalidEnvelope([Violation("", "must be a metric (an object) or an array of metrics")])
    return parse_each(split(body), parse, "[{}]".format)


def envelopes(metrics_json: Sequence[bytes], tenant: str, region: str, created: float) -> list[bytes]:
    """See `envelopes_of`."""
    return envelopes_of(b"metric", metrics_json, {"tenantId": tenant, "region": region}, created)


def _parse_element(element: bytes, *, rules: PostRules) -> bytes:
    try:
        return _normalised([_decode_posted(element)], rules)[0]
    except _REFUSED:
        metric = Fields.read(element)
        _check_metric(metric, POSTED, rules)
        raise _refusal(metric.violations) from None


# Normalised dimensions by name, posted text and maximum number, so that each text is checked and sorted only once.
_checked: Seen[tuple[str, bytes, int], msgspec.Raw] = Seen(20_000, max_entry_bytes=1024)


def _normalised(metrics: Sequence[_PostedMetric], rules: PostRules) -> list[bytes]:
    """Return the JSON of each metric. Raise one of `_REFUSED` if a metric breaks a rule.

    The loop contains no calls, and one pass runs in C; a call per metric would take a quarter longer.
    """
    allowed, max_dimensions, reserved_names = rules
    if reserved_names and not reserved_names.isdisjoint([metric.name for metric in metrics]):
        raise ValueError(RESERVED)
    earliest_ms, latest_ms = max(0, allowed.earliest_ms), min(LATEST_MS, allowed.latest_ms)
    find = _checked.find
    for metric in metrics:
        key = (metric.name, bytes(metric.dimensions), max_dimensions)
        metric.dimensions = find(key) or _check(key)
        time_ms = metric.timestamp
        if time_ms.__class__ is float:
            time_ms = metric.timestamp = math.floor(time_ms)  # a time just before 0 stays before 0
        if not earliest_ms <= time_ms <= latest_ms:
            raise ValueError(times.NOT_A_TIME)
        if not metric.value:
            metric.value = 0.0  # replaces -0.0
        if metric.value_meta is not None:
            metric.value_meta = _posted_meta(metric.value_meta) if metric.value_meta else None  # type: ignore[assignment]
    # msgspec takes a third of the time of formatting the members.
    return list(map(json_text.write, metrics))


def _check(key: tuple[str, bytes, int]) -> msgspec.Raw:
    name, dimensions_text, most = key
    dimensions = _decode_dimensions(dimensions_text) or {}
    if len(dimensions) > most or not POSTED.keep(name, dimensions):
        raise ValueError("breaks a limit")
    text = msgspec.Raw(json_text.write_sorted(dimensions))
    _checked.keep(key, text, len(name) + len(dimensions_text))
    return text


def _posted_meta(members: Mapping[str, Any]) -> msgspec.Raw:
    if any(_value_meta_faults(members, POSTED)):
        raise ValueError("breaks a limit")
    return msgspec.Raw(json_text.write_sorted(members))


def _stored_meta(members: Mapping[str, Any]) -> str:
    if any(_value_meta_faults(members, STORED)):
        raise ValueError("breaks a limit")
    texts = {key: _as_text(value) for key, value in members.items()}
    return json_text.write_sorted(texts).decode()


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text.write(value).decode()


def _value_meta_faults(members: Mapping[str, Any], limits: Limits) -> Iterator[tuple[str | None, str]]:
    """Yield broken rules with their keys; the key ``None`` stands for the whole value_meta."""
    if len(members) > MOST_META_ENTRIES:
        yield None, f"has {len(members)} entries: at most {MOST_META_ENTRIES} are allowed"
    written, fault = json_text.checked(members)
    if len(written) > MOST_META_BYTES:
        yield None, f"has {len(written)} bytes as JSON: at most {MOST_META_BYTES} are allowed"
    if fault:
        yield None, fault
    for key, value in members.items():
        if not limits.meta_key.least <= len(key) <= (limits.meta_key.most or len(key)):
            yield from ((key, f"as a key {rule}") for rule in limits.meta_key.faults(key))
        if limits.only_text_in_meta and not isinstance(value, str):
            yield key, "must be a string"


# The slow checks, which collect all violations after the fast check has refused a metric.


def _stored_error(value: bytes | None, max_dimensions: int) -> InvalidEnvelope:
    whole = Fields.read(value)
    _check_metric(whole.inner("metric"), STORED, PostRules(max_dimensions=max_dimensions))
    meta = whole.inner("meta")
    meta.text("tenantId", TENANT)
    meta.text("region", REGION, required=False)
    whole.parsed("creation_time", times.version, required=False)
    return _refusal(whole.violations)


def _refusal(violations: list[Violation]) -> InvalidEnvelope:
    # A property test ensures that both checks agree. If they disagree, the fast check decides.
    return InvalidEnvelope(violations or [Violation("", "cannot be read as a metric")])


def _check_metric(metric: Fields, limits: Limits, rules: PostRules) -> None:
    name = metric.text("name", limits.name)
    if name in rules.reserved_names:
        metric.report("name", [f"is {name}, {RESERVED}"])
    metric.dimensions(limits, rules.max_dimensions)
    metric.parsed("timestamp", partial(rules.allowed.parsed, times.from_ms))
    metric.parsed("value", _finite if limits is POSTED else _stored_value)
    value_meta = metric.inner("value_meta", required=False)
    for key, rule in _value_meta_faults(value_meta.members, limits):
        value_meta.report(key, [rule])


def _finite(value: Any) -> float:
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError("must be a finite number")


def _stored_value(value: Any) -> float:
    return BY_TEXT[value] if isinstance(value, str) and value in BY_TEXT else _finite(value)  # type: ignore[index]
