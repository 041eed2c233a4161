# SPDX-License-Identifier: Apache-2.0
"""Turns metric envelopes into records: each envelope is decoded once and copied to the specifications that select it. A
record counts for all of these specifications or for none: an envelope with a fault is rejected with its reason. If it
counted for only some of them, these would count it twice when a corrected copy is replayed from the dead letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from monasca_common.models import json_text, times
from monasca_common.models.fields import Fields
from monasca_common.models.limits import STORED
from monasca_common.models.numbers import ValueText
from monasca_common.models.seen import Seen
from monasca_common.pipeline.errors import MALFORMED, TOO_NEW, TOO_OLD, Rejection
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import PreTransform, Specifications, Transform
from monasca_common.pipeline.windows import WINDOW_MS, TimeBounds

MOST_QUANTITY = 2.0**960
"""The largest quantity (about 9.7e288, of either sign): the sum of 2^63 such records is still a finite float."""

Group = tuple[str, ...]
"""The values of the transform's ``group_by`` columns, in the same order."""

_UNREADABLE = (*json_text.UNREADABLE, TypeError)  # TypeError: a message without a value
_FAR = f"must be a number between -{MOST_QUANTITY:.1e} and {MOST_QUANTITY:.1e}, because larger values overflow sums"


class _Ungroupable(ValueError):
    """The record's group cannot be stored in a database."""


class _RecordMetric(msgspec.Struct, gc=False):
    name: str
    timestamp: int | float
    value: float | ValueText
    dimensions: msgspec.Raw = msgspec.Raw(b"{}")
    value_meta: msgspec.Raw = msgspec.Raw(b"null")


class _RecordEnvelope(msgspec.Struct, gc=False):
    metric: _RecordMetric
    meta: msgspec.Raw = msgspec.Raw(b"null")
    creation_time: Any = None


_decode_envelope = msgspec.json.Decoder(_RecordEnvelope).decode
_decode_dimensions = msgspec.json.Decoder(dict[str, str | None] | None).decode
_decode_map = msgspec.json.Decoder(dict[str, Any] | None).decode


@dataclass(slots=True)
class Records:
    """The result of one call of `read`, as columns: the i-th entries of the first six columns form the i-th record.

    ``indices``: the index of each record's message. ``rejected``: rejections by that index. ``non_finite``: the number
    of skipped messages whose value is NaN or infinite; such a value would make every sum meaningless. Other messages
    that are neither rejected nor records are excluded: no specification names the metric, it has the name of an
    aggregate, it lacks a required field, or a filter excludes it.
    """

    specification_ids: list[str] = field(default_factory=list)
    windows_ms: list[int] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    timestamps_ms: list[float] = field(default_factory=list)
    quantities: list[float] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    rejected: dict[int, Rejection] = field(default_factory=dict)
    non_finite: int = 0


@dataclass(frozen=True, slots=True)
class _Targets:
    """The specifications that select the records with one name, set of dimensions and meta. ``undated``: the metrics
    for which creation_time is optional."""

    dated: tuple[tuple[str, Group], ...]
    undated: tuple[tuple[str, Group], ...]


# Marks records whose targets depend on their value_meta.
_VARIES = _Targets((), ())


class RecordReader:
    """Decodes messages into records. Not thread-safe. It caches the result of decoding dimensions and meta by their
    text (``max_remembered`` entries of about 1 kB), because most records repeat both.
    """

    def __init__(self, specifications: Specifications, *, max_remembered: int = 100_000) -> None:
        outputs = specifications.outputs
        self._wanted: dict[str, list[tuple[PreTransform, Transform]]] = {}
        for row in specifications.pre_transforms:
            if row.event_type not in outputs:
                pairs = [(row, specifications.transforms[metric_id]) for metric_id in row.metric_ids]
                self._wanted.setdefault(row.event_type, []).extend(pairs)
        self._seen: Seen[tuple[str, bytes, bytes], _Targets] = Seen(max_remembered, max_entry_bytes=4096)
        self._seen_varying: Seen[tuple[str, bytes, bytes, bytes], _Targets] = Seen(max_remembered // 4)

    def read(self, values: Sequence[bytes | None], bounds: TimeBounds) -> Records:
        """Decode the values of messages in one pass."""
        records = Records()
        add_specification, add_window = records.specification_ids.append, records.windows_ms.append
        add_group, add_time = records.groups.append, records.timestamps_ms.append
        add_quantity, add_index = records.quantities.append, records.indices.append
        decode, find, wanted = _decode_envelope, self._seen.find, self._wanted
        oldest_ms, latest_ms = bounds.oldest_ms, bounds.latest_ms
        for index, value in enumerate(values):
            try:
                envelope = decode(value)  # type: ignore[arg-type]
                metric = envelope.metric
                name = metric.name
                if name not in wanted:
                    continue
                targets = find((name, bytes(metric.dimensions), bytes(envelope.meta)))
                if targets is None or targets is _VARIES:
                    targets = self._resolve(envelope)
                created = envelope.creation_time
                chosen = targets.undated if created is None or created == "" else targets.dated
                timestamp_ms = metric.timestamp
                quantity = metric.value
                if isinstance(quantity, str):
                    records.non_finite += bool(chosen)
                    continue
                quantity += 0.0
                if not (oldest_ms <= timestamp_ms <= latest_ms and -MOST_QUANTITY <= quantity <= MOST_QUANTITY):
                    records.rejected[index] = _why(value, bounds)
                    continue
            except _UNREADABLE as error:
                records.rejected[index] = _why(value, bounds, error)
                continue
            window_ms = int(timestamp_ms // WINDOW_MS) * WINDOW_MS
            for specification_id, group in chosen:
                add_specification(specification_id)
                add_window(window_ms)
                add_group(group)
                add_time(float(timestamp_ms))
                add_quantity(quantity)
                add_index(index)
        return records

    def _resolve(self, envelope: _RecordEnvelope) -> _Targets:
        """Raises msgspec's errors for invalid dimensions, meta or value_meta."""
        metric = envelope.metric
        key = (metric.name, bytes(metric.dimensions), bytes(envelope.meta))
        varying = (*key, bytes(metric.value_meta))
        known = self._seen_varying.find(varying)
        if known is not None:
            return known
        subject = Subject(
            metric.name,
            _decode_dimensions(key[1]) or {},
            _decode_map(key[2]) or {},
            lambda: _decode_map(varying[3]) or {},
        )
        dated: list[tuple[str, Group]] = []
        undated: list[tuple[str, Group]] = []
        for row, transform in self._wanted[metric.name]:
            if subject.wanted_by(row, transform):
                target = (transform.id, subject.group(row, transform))
                dated.append(target)
                if "creation_time" not in row.required:
                    undated.append(target)
        targets = _Targets(tuple(dated), tuple(undated))
        size_bytes = sum(map(len, key[1:]))
        if subject.has_read_value_meta:
            self._seen.keep(key, _VARIES, size_bytes)
            self._seen_varying.keep(varying, targets, size_bytes + len(varying[3]))
        else:
            self._seen.keep(key, targets, size_bytes)
        return targets


class Subject:
    """The columns of one record. ``value_meta`` is called only when a column depends on it."""

    def __init__(
        self,
        event_type: str,
        dimensions: Mapping[str, Any],
        meta: Mapping[str, Any],
        value_meta: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.event_type = event_type
        self._dimensions = dimensions
        self._meta = meta
        self._read_value_meta = value_meta
        self._value_meta: Mapping[str, Any] | None = None

    @property
    def has_read_value_meta(self) -> bool:
        return self._value_meta is not None

    def wanted_by(self, row: PreTransform, transform: Transform) -> bool:
        """Return whether the transform selects the record. The reader checks creation_time separately, because equal
        dimensions and meta do not imply an equal creation_time."""
        for required in row.required:
            kind, key = columns.map_and_key(required)
            if kind and _text(self._map(kind).get(key)) is None:
                return False
            if required == "meta" and not self._meta:
                return False
        return all(kept.keeps(self.column(kept.column, row, transform)) for kept in transform.filters)

    def group(self, row: PreTransform, transform: Transform) -> Group:
        """Return the group of the record. Raises `ValueError` for a value that cannot be a database key, because it is
        too long or contains NUL."""
        values = tuple(self.column(column, row, transform) for column in transform.group_by)
        for column, value in zip(transform.group_by, values, strict=True):
            for fault in STORED.value.faults(value):
                raise _Ungroupable(f"{column}, by which {transform.metric_id} is grouped, {fault}")
        return values

    def column(self, column: str, row: PreTransform, transform: Transform) -> str:
        """Return the value of a column: `columns.NA` if it is missing, null or empty; zone, geolocation and region have
        defaults."""
        kind, key = columns.map_and_key(column)
        if kind:
            return _text(self._map(kind).get(key)) or columns.NA
        if column == "event_type":
            return self.event_type
        if column == "metric_id":
            return transform.metric_id
        texts = (_text(self._map(kind).get(key)) for kind, key in columns.PLACES[column])
        return next(filter(None, texts), None) or getattr(row, f"default_{column}", None) or columns.NA

    def _map(self, kind: str) -> Mapping[str, Any]:
        if kind == "dimensions":
            return self._dimensions
        if kind == "meta":
            return self._meta
        if self._value_meta is None:
            self._value_meta = self._read_value_meta()
        return self._value_meta


def _text(value: Any) -> str | None:
    """Return the value as text. Values other than strings, such as numbers in value_meta, become JSON."""
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json_text.write(value).decode()


# This function finds the reason for a rejection. It is slow, and is called only if the fast path has refused the
# envelope.


def _why(value: bytes | None, bounds: TimeBounds, error: Exception | None = None) -> Rejection:
    whole = Fields.read(value)
    metric = whole.inner("metric")
    metric.text("name")
    timestamp_ms = metric.parsed("timestamp", _timestamp)
    metric.parsed("value", _quantity)
    dimensions = metric.inner("dimensions", required=False)
    for key, text in dimensions.members.items():
        if text is not None and not isinstance(text, str):
            dimensions.report(key, ["must be a string"])
    metric.inner("value_meta", required=False)
    whole.inner("meta", required=False)
    if whole.violations:
        return Rejection(MALFORMED, "; ".join(map(str, whole.violations)))
    if timestamp_ms is not None and timestamp_ms > bounds.latest_ms:
        return Rejection(TOO_NEW, "metric.timestamp is too far in the future: is it in milliseconds?")
    if timestamp_ms is not None and timestamp_ms < bounds.oldest_ms:
        return Rejection(TOO_OLD, "metric.timestamp is older than the retention: is it in milliseconds?")
    # The branches above cover values that msgspec refuses. This branch covers all other values.
    return Rejection(MALFORMED, str(error) if isinstance(error, _Ungroupable) else "cannot be read as a metric")


def _timestamp(value: Any) -> float:
    times.from_ms(value)
    return float(value)


def _quantity(value: Any) -> float:
    try:
        if type(value) in (int, float) and math.fabs(value) <= MOST_QUANTITY:
            return float(value)
    except OverflowError:
        pass
    raise ValueError(_FAR)
