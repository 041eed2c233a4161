# SPDX-License-Identifier: Apache-2.0
"""Requests of Prometheus' remote write 1.0 (the message ``prometheus.WriteRequest``) as samples.

They are read without protobuf's classes, which would create an object per label of each sample; the labels of a cached
series are only looked up. Unknown fields are skipped. Every length is checked, and the work is linear in the size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from struct import Struct, error

from monasca_common.models.errors import Unreadable
from monasca_common.models.numbers import STALE_DOUBLE
from monasca_common.models.post import DEFAULT_RULES, ParsedPost, PostRules
from monasca_common.models.samples import NO_META, STALE_META, Samples, series_head, shown
from monasca_common.models.seen import Seen

_NAME = "__name__"
_ZERO = bytes(8)
_double = Struct("<d").unpack

# Protobuf tags: the field number, shifted left by 3 bits, plus the wire type.
SERIES = LABEL = LABEL_NAME = 0x0A
SAMPLE = LABEL_VALUE = 0x12
HISTOGRAM = 0x22
_VALUE, _TIME = 0x09, 0x10
_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_MOST_FAULTS = 20
_NONE: Sequence[str] = ()
# The start of the usual last field of a series: a sample whose time has 6 bytes, with a value, and without one (0).
_USUAL_SAMPLE, _USUAL_ZERO = b"\x12\x10\x09", b"\x12\x07\x10"
# By the size of a series: its bytes up to the end of _USUAL_SAMPLE, its value, and the tag and the bytes of its time.
# Larger series are seldom in the cache. The table has all sizes of one or two bytes.
_UNPACK = [Struct(f"<{size - 15}sd7s").unpack_from if 15 <= size < 2048 else None for size in range(0x8000)]


@lru_cache(maxsize=4)
def _heads(_max_dimensions: int, _reserved_names: frozenset[str]) -> Seen[bytes, bytes]:
    """Return the cache of valid series under these rules: the head of each, by its labels and `_USUAL_SAMPLE`."""
    return Seen(20_000, max_entry_bytes=4096)


class SeriesParser:
    """Parses the series of one request into ``samples``. ``series``: the number of earlier series."""

    def __init__(self, rules: PostRules) -> None:
        self.samples = Samples(rules)
        self.series = 0
        self._heads = _heads(rules.max_dimensions, rules.reserved_names)
        self._times: dict[bytes, bytes] = {}  # by the field of a sample: see `Samples.extend`

    @classmethod
    def parse(cls, body: bytes, rules: PostRules = DEFAULT_RULES) -> ParsedPost:
        """Parse a request. Raises `Unreadable`, and `InvalidEnvelope` if the request has too many samples."""
        parser = cls(rules)
        try:
            parser.add_all(body)
        except (IndexError, error):
            raise Unreadable("is not a protobuf message of remote write: it is truncated") from None
        return parser.samples.post()

    def add_all(self, body: bytes) -> None:
        """Add all series. Raises `InvalidEnvelope` for too many series or samples, `Unreadable`, and `IndexError` or
        `struct.error` for a truncated field. The loop makes few calls for a usual series that is in the caches."""
        find, time_of = self._heads.find, self._times.get
        at, end = 0, len(body)
        while at < end:
            heads, times, values = [], [], []
            other = None  # the next series that is not usual
            while at < end and other is None:
                key, size, start = body[at], body[at + 1], at + 2
                if size & 0x80:
                    size, start = size & 0x7F | body[start] << 7, start + 1
                if key == SERIES and (unpack := _UNPACK[size]) is not None:
                    at = start + size
                    labels, value, time_field = unpack(body, start)
                    head, time = find(labels), time_of(time_field)
                    if head is None and body[at - 9 : at - 6] == _USUAL_ZERO:
                        head, value = find(body[start : at - 9] + _USUAL_SAMPLE), 0.0
                    if time is None and time_field[0] == _TIME and min(time_field[1:6]) > 0x7F >= time_field[6]:
                        self._time_fault(time_field)
                        time = time_of(time_field)
                    if head is not None and time is not None and value == value:  # not NaN
                        heads.append(head)
                        times.append(time)
                        values.append(value)
                        continue
                else:
                    key, start, at = _field(body, at)
                if key == SERIES:
                    other = body[start:at]
            self.samples.extend(heads, times, values, NO_META)
            self.series += len(heads)
            if other is not None:
                self._add_series(other)

    def _add_series(self, data: bytes) -> None:
        at = 0
        while at < len(data) and data[at] == LABEL:
            _, _, at = _field(data, at)
        labels = data[:at]
        head, faults, place = self._heads.find(labels + _USUAL_SAMPLE), _NONE, ""
        if head is None:
            head, faults = self._checked(labels)
        for key, content in fields(data, at):
            if key == SAMPLE:
                broken = faults or self._add(head, content)
            elif key == HISTOGRAM:
                broken = ("native histograms are not stored: set send_native_histograms to false",)
            elif key == LABEL:  # protobuf allows labels after samples, but no sender writes them
                raise Unreadable("has labels after samples: write the labels of a series first")
            else:
                continue
            if broken:
                place = place or f"timeseries[{self.series}] ({_shown(labels)})"
                self.samples.refuse(place, broken)
        self.series += 1
        self.samples.check_count(self.series)  # a small body can have millions of series without samples

    def _add(self, head: bytes, content: bytes) -> Sequence[str]:
        """Add a sample, or return the rules that it breaks."""
        value, time_field = content[1:9], content[9:]
        if len(content) != 16 or content[0] != _VALUE or time_field not in self._times:  # not the usual form
            found = dict(fields(content))  # fields with the value 0 are not written
            value, time_field = found.get(_VALUE, _ZERO), bytes((_TIME,)) + found.get(_TIME, b"\0")
            if time_field not in self._times and (fault := self._time_fault(time_field)):
                return (f"its time {fault}",)
        meta = STALE_META if value == STALE_DOUBLE else NO_META
        self.samples.extend((head,), (self._times[time_field],), _double(value), meta)
        return _NONE

    def _time_fault(self, time_field: bytes) -> str | None:
        """Return the rule that a time breaks, or keep its JSON, because most samples of a request share a few times."""
        time_ms, _ = varint(time_field, 1)
        time_ms -= time_ms >> 63 << 64  # negative numbers have 64 bits
        fault = self.samples.rules.allowed.fault(time_ms)
        if fault is None:
            self._times[time_field] = b"%d," % time_ms
        return fault

    def _checked(self, labels: bytes) -> tuple[bytes, Sequence[str]]:
        """Return the head of a series that is not in the cache, and the rules that the series breaks."""
        found: dict[str, str] = {}
        faults, dimension_count = [], 0
        for _, content in fields(labels):
            name_bytes, value_bytes = _pair(content)
            try:
                name, value = name_bytes.decode(), value_bytes.decode()
            except UnicodeDecodeError:
                faults.append("a label is not UTF-8")
                continue
            if name in found:
                faults.append(f"the label {shown(name)} is repeated")
            found[name] = value
            dimension_count += bool(value) and name != _NAME
            if dimension_count > self.samples.rules.max_dimensions or len(faults) > _MOST_FAULTS:
                break
        name = found.pop(_NAME, "")
        dimensions = {key: value for key, value in found.items() if value}  # an empty label equals a missing one
        faults += self.samples.faults(name, dimensions)
        if faults:
            return b"", faults
        head = series_head(name, dimensions)
        self._heads.keep(labels + _USUAL_SAMPLE, head, len(labels) + len(head))
        return head, faults


parse = SeriesParser.parse


def _pair(label: bytes) -> tuple[bytes, bytes]:
    if 3 < len(label) < 0x80:
        name, value = label[2 : label[1] + 2], label[label[1] + 4 :]
        if label == b"\x0a%c%b\x12%c%b" % (len(name), name, len(value), value):  # the usual form
            return name, value
    found = dict(fields(label))
    return found.get(LABEL_NAME, b""), found.get(LABEL_VALUE, b"")


def _shown(labels: bytes) -> str:
    pairs = [_pair(content) for _, content in islice(fields(labels), 20)]
    text = ", ".join(f"{name.decode(errors='replace')}={value.decode(errors='replace')}" for name, value in pairs)
    return shown(text)


def fields(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the key and the content of each field. Raises `IndexError` for a truncated field."""
    while at < len(data):
        key, start, at = _field(data, at)
        yield key, data[start:at]


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the key of the field at this position, and the start and the end of its content."""
    key = data[at]
    if key & 0x80:
        key, at = varint(data, at)
    else:
        at += 1
    start, kind = at, key & 7
    if kind == _BYTES:
        size, start = data[at], at + 1
        if size & 0x80:
            size, start = varint(data, at)
        at = start + size
    elif kind == _VARINT:
        _, at = varint(data, at)
    elif kind in _FIXED_SIZES:
        at += _FIXED_SIZES[kind]
    else:
        raise Unreadable("is not a protobuf message of remote write: a field has an unknown type")
    if at > len(data):
        raise IndexError
    return key, start, at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise Unreadable("is not a protobuf message of remote write: a number has more than 64 bits")
