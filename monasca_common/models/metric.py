# SPDX-License-Identifier: Apache-2.0
"""Metrics: from posted bodies to envelopes (the API), and from envelopes to rows (the persister).

An envelope: ``{"metric": {"name", "dimensions": {}, "timestamp": <ms>, "value", "value_meta": null | {}},
"meta": {"tenantId", "region"}, "creation_time": <s>}``, the last with milliseconds, if any, as a fraction. Members of
other names are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from sys import intern
from typing import Any, NamedTuple, TypeVar

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
from monasca_common.models.post import (
    MOST_ELEMENTS,
    ParsedPost,
    check_count,
    envelope_ends,
    members_of,
    parse_each,
    split,
)
from monasca_common.models.rows import Decoded, Measurement, good_indices
from monasca_common.models.seen import Seen
from monasca_common.models.series import Series, series_id
from monasca_common.models.times import ANY_TIME, Window

T = TypeVar("T")

_LATEST_S = LATEST_MS // 1000
_NUMBERS = {int, float}
_REFUSED = (*json_text.UNREADABLE, TypeError)  # TypeError: a message without a value
_TOGETHER = 1000  # messages: enough to spread the cost of a pass, few enough to stay in the processor's cache
_OBJECT = re.compile(rb"[ \t\r\n]*\{")
_ARRAY = re.compile(rb"[ \t\r\n]*\[")

_RESERVED = "which the database keeps for rows of its own: name the metric otherwise"

# Building a named tuple from a tuple: a third cheaper than calling its class.
_measurement: Callable[[tuple[Series, int, float, str | None, int]], Measurement] = partial(tuple.__new__, Measurement)


class _Rules(NamedTuple):
    """What a metric has to keep beside `Limits`."""

    allowed: Window
    max_dimensions: int
    reserved_names: frozenset[str]


# Not tracked by the garbage collector (they cannot be part of a cycle): it would walk 20,000 of them in each batch.
# Dimensions and meta stay text, because equal texts are equal series.


class _StoredMetric(msgspec.Struct, gc=False):
    name: str
    timestamp: int | float
    value: float
    dimensions: msgspec.Raw = msgspec.Raw(b"{}")
    value_meta: dict[str, Any] | None = None


class _Envelope(msgspec.Struct, gc=False):
    metric: _StoredMetric
    meta: msgspec.Raw
    creation_time: int | float | None = None


class _PostedMetric(msgspec.Struct, gc=False, kw_only=True):
    """Members in the order in which they are written. ``dimensions`` and ``value_meta`` become normalised text."""

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
_write = msgspec.json.Encoder().encode
_decode_dimensions = msgspec.json.Decoder(dict[str, str] | None).decode


class MetricDecoder:
    """Values of messages to `Measurement` rows, with a memory of ``max_series`` series (about 1 kB each).

    What has more than ``max_dimensions`` dimensions is refused.

    The limits are `limits.STORED`: characters that the API refuses today are accepted, for what is in the topic
    was accepted by whoever wrote it. Values of value_meta that are no strings become their JSON text; no or null
    creation_time gives version 0; a missing region is ``""``; ``-0.0`` is stored as ``0.0``, which equals it.
    For one thread; what is remembered is computed from the text alone, so that nothing can make it wrong.
    """

    def __init__(self, max_series: int = 200_000, *, max_dimensions: int = MOST_DIMENSIONS) -> None:
        self._max_dimensions = max_dimensions
        self._series: Seen[tuple[str, bytes, bytes], Series] = Seen(max_series, max_entry_bytes=4096)

    def decode_all(self, values: Sequence[bytes | None]) -> Decoded[Measurement]:
        """What breaks a rule is looked at again, for all its violations."""
        return self._decode(values, self._measurements)

    def decode_readings(self, values: Sequence[bytes | None]) -> Decoded[tuple[Series, int, float]]:
        """As `decode_all`, of each row no more than series, time in ms and value. The same messages break a rule."""
        return self._decode(values, self._readings)

    def _decode(self, values: Sequence[bytes | None], together: Callable[[Sequence[Any]], list[T]]) -> Decoded[T]:
        rows: list[T] = []
        errors: dict[int, InvalidEnvelope] = {}
        for start in range(0, len(values), _TOGETHER):
            some = values[start : start + _TOGETHER]
            try:
                rows += together(some)
            except _REFUSED:
                self._decode_each(some, start, together, rows, errors)
        return Decoded(rows, good_indices(len(values), errors), errors)

    def _decode_each(
        self,
        values: Sequence[bytes | None],
        start: int,
        together: Callable[[Sequence[Any]], list[T]],
        rows: list[T],
        errors: dict[int, InvalidEnvelope],
    ) -> None:
        """One by one; ``values`` begin at position ``start``."""
        for index, value in enumerate(values, start):
            try:
                rows += together((value,))
            except _REFUSED:
                errors[index] = _why_not_stored(value, self._max_dimensions)

    # Column by column, most of it in C: two thirds of the time that a loop over messages takes.

    def _measurements(self, values: Sequence[bytes]) -> list[Measurement]:
        """Raises where one breaks a rule."""
        envelopes = list(map(_decode_envelope, values))
        metrics = [envelope.metric for envelope in envelopes]
        series, times_ms, numbers = self._columns(envelopes, metrics)
        metas = [_stored_meta(metric.value_meta) if metric.value_meta else None for metric in metrics]
        versions = _versions([envelope.creation_time for envelope in envelopes])
        return list(map(_measurement, zip(series, times_ms, numbers, metas, versions, strict=True)))

    def _readings(self, values: Sequence[bytes]) -> list[tuple[Series, int, float]]:
        """Raises where one breaks a rule."""
        envelopes = list(map(_decode_envelope, values))
        metrics = [envelope.metric for envelope in envelopes]
        rows = list(zip(*self._columns(envelopes, metrics), strict=True))
        for metric in metrics:
            if metric.value_meta:
                _stored_meta(metric.value_meta)
        created = [envelope.creation_time for envelope in envelopes]
        if not _are_usual(created):
            _versions(created)
        return rows

    def _columns(
        self, envelopes: Sequence[_Envelope], metrics: Sequence[_StoredMetric]
    ) -> tuple[list[Series], Iterable[int], list[float]]:
        keys = [
            (metric.name, bytes(metric.dimensions), bytes(envelope.meta))
            for metric, envelope in zip(metrics, envelopes, strict=True)
        ]
        find = self._series.find
        series = list(map(find, keys))
        if not all(series):  # asked again: one before it may have been the same
            series = [known or find(key) or self._resolve(key) for known, key in zip(series, keys, strict=True)]
        times_ms = [metric.timestamp for metric in metrics]
        if min(times_ms) < 0 or max(times_ms) > LATEST_MS:
            raise ValueError(times.NOT_A_TIME)
        numbers = [metric.value + 0.0 for metric in metrics]
        return series, map(int, times_ms), numbers  # type: ignore[return-value]  # no series is missing any more

    def _resolve(self, key: tuple[str, bytes, bytes]) -> Series:
        name, dimensions_text, meta_text = key
        meta = _decode_meta(meta_text)
        region = meta.region or ""
        dimensions = _decode_dimensions(dimensions_text) or {}
        if len(dimensions) > self._max_dimensions or not STORED.keep(name, dimensions):
            raise ValueError("breaks a limit")
        if any(TENANT.faults(meta.tenant)) or any(REGION.faults(region)):
            raise ValueError("breaks a limit")
        # The same few keys stand in all series.
        dimensions = {intern(dimension): value for dimension, value in dimensions.items()}
        series = Series(series_id(meta.tenant, region, name, dimensions), meta.tenant, region, name, dimensions)
        self._series.keep(key, series, len(name) + len(dimensions_text) + len(meta_text))
        return series


def _versions(created: list[Any]) -> list[int]:
    """As `times.version` of each, without the call where they are what they usually are."""
    if _are_usual(created):
        return [round(seconds * 1000) for seconds in created]
    return list(map(times.version, created))


def _are_usual(created: list[Any]) -> bool:
    return set(map(type, created)) <= _NUMBERS and min(created) >= 0 and max(created) <= _LATEST_S


def parse_post(
    body: bytes,
    *,
    allowed: Window = ANY_TIME,
    max_dimensions: int = MOST_DIMENSIONS,
    reserved_names: frozenset[str] = frozenset(),
) -> ParsedPost:
    """A body of one metric or an array of metrics, with times in ``allowed``. The limits are `limits.POSTED`.

    ``reserved_names``: those that no metric may have.

    ``valid`` holds ``{"name", "dimensions", "timestamp", "value", "value_meta"}`` with the timestamp in integer ms.
    Raises `NotJson`, and `InvalidEnvelope` for what is neither object nor array, or has too many elements.
    """
    rules = _Rules(allowed, max_dimensions, reserved_names)
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


def envelope(metric_json: bytes, tenant: str, region: str, creation_time: float) -> bytes:
    """The message of one element of `ParsedPost.valid`; ``creation_time`` in seconds."""
    return b'{"metric":%b%b' % (metric_json, envelope_ends(tenant, region, creation_time))


def envelopes(metrics_json: Sequence[bytes], tenant: str, region: str, creation_time: float) -> list[bytes]:
    """The messages of one request."""
    end = envelope_ends(tenant, region, creation_time)
    return [b'{"metric":' + metric_json + end for metric_json in metrics_json]


def _parse_element(element: bytes, *, rules: _Rules) -> bytes:
    try:
        return _normalised([_decode_posted(element)], rules)[0]
    except _REFUSED:
        raise _why_not_posted(element, rules) from None


# The text of the dimensions as it is written, by name, the text that was posted and how many there may be: checked
# once, sorted once.
_checked: Seen[tuple[str, bytes, int], msgspec.Raw] = Seen(20_000, max_entry_bytes=1024)


def _normalised(metrics: Sequence[_PostedMetric], rules: _Rules) -> list[bytes]:
    """The text of each. Raises where one breaks a rule.

    One loop without calls, then one pass in C: with a call for each metric it took a quarter longer.
    """
    allowed, max_dimensions, reserved_names = rules
    if reserved_names and not reserved_names.isdisjoint([metric.name for metric in metrics]):
        raise ValueError(_RESERVED)
    earliest_ms, latest_ms = max(0, allowed.earliest_ms), min(LATEST_MS, allowed.latest_ms)
    find = _checked.find
    for metric in metrics:
        key = (metric.name, bytes(metric.dimensions), max_dimensions)
        metric.dimensions = find(key) or _check(key)
        time_ms = metric.timestamp
        if time_ms.__class__ is float:
            time_ms = metric.timestamp = _whole(time_ms)
        if not earliest_ms <= time_ms <= latest_ms:
            raise ValueError(times.NOT_A_TIME)
        if not metric.value:
            metric.value = 0.0  # -0.0 equals it
        if metric.value_meta is not None:
            metric.value_meta = _posted_meta(metric.value_meta) if metric.value_meta else None  # type: ignore[assignment]
    # Written by msgspec as a whole: a third of what formatting a text of the members costs.
    return list(map(_write, metrics))


def _whole(time_ms: float) -> int:
    if not 0 <= time_ms <= LATEST_MS:
        raise ValueError(times.NOT_A_TIME)
    return int(time_ms)


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
    """Keys (None for the whole) and rules."""
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


# Why not: slow, thorough, and only asked after the fast look has refused.


def _why_not_posted(element: bytes, rules: _Rules) -> InvalidEnvelope:
    violations: list[Violation] = []
    _look_at_metric(Fields.read(element, violations), POSTED, rules)
    return _refusal(violations)


def _why_not_stored(value: bytes | None, max_dimensions: int) -> InvalidEnvelope:
    violations: list[Violation] = []
    whole = Fields.read(value, violations)
    _look_at_metric(whole.inner("metric"), STORED, _Rules(ANY_TIME, max_dimensions, frozenset()))
    meta = whole.inner("meta")
    meta.text("tenantId", TENANT)
    meta.text("region", REGION, required=False)
    whole.parsed("creation_time", times.version, required=False)
    return _refusal(violations)


def _refusal(violations: list[Violation]) -> InvalidEnvelope:
    # The two looks agree (a property test holds them to it); if ever they do not, the fast one has refused.
    return InvalidEnvelope(violations or [Violation("", "cannot be read as a metric")])


def _look_at_metric(metric: Fields, limits: Limits, rules: _Rules) -> None:
    name = metric.text("name", limits.name)
    if name in rules.reserved_names:
        metric.blame("name", [f"is {name}, {_RESERVED}"])
    metric.dimensions(limits, rules.max_dimensions)
    metric.parsed("timestamp", rules.allowed.checked(times.from_ms))
    metric.parsed("value", _finite)
    value_meta = metric.inner("value_meta", required=False)
    for key, rule in _value_meta_faults(value_meta.members, limits):
        value_meta.blame(key, [rule])


def _finite(value: Any) -> float:
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError("must be a finite number")
