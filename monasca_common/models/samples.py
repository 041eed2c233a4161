# SPDX-License-Identifier: Apache-2.0
"""Samples of series from Prometheus and OpenTelemetry, as metrics for envelopes.

Names and dimensions obey `limits.STORED`, not the stricter rules of posts: any UTF-8 text without NUL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from monasca_common.models import json_text
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.limits import STORED, too_many_dimensions
from monasca_common.models.metric import RESERVED
from monasca_common.models.numbers import STALE, value_text
from monasca_common.models.post import DEFAULT_RULES, MOST_BYTES, MOST_ELEMENTS, ParsedPost, PostRules
from monasca_common.models.rows import good_indices
from monasca_common.models.seen import Seen

NO_META = b"null"
STALE_META = json_text.write(STALE)
_MOST_VIOLATIONS = 100
_MOST_NUMBER_BYTES = 70  # maximum size of a metric without its head and meta: its time, its value and member names
_NULL = b"null"  # the JSON of values that are not finite, before they become texts

_digests: Seen[bytes, bytes] = Seen(20_000, max_entry_bytes=2048)  # digests of the heads of series


class Samples:
    """Collects the samples of one request, and the violations of those that are refused. ``most``: the maximum number
    of samples."""

    def __init__(self, rules: PostRules = DEFAULT_RULES, *, most: int = MOST_ELEMENTS) -> None:
        self.rules = rules
        self.total = 0
        self._most = most
        self._heads: list[bytes] = []
        self._times: list[bytes] = []
        self._values: list[float] = []
        self._metas: list[bytes] = []
        self._ends: list[bytes] = []  # of the JSON, from value_meta on
        self._refused: set[int] = set()
        self._bytes_left = MOST_BYTES
        self._violations: list[Violation] = []

    def faults(self, name: str, dimensions: Mapping[str, str]) -> list[str]:
        """Return the rules that a series breaks."""
        if name in self.rules.reserved_names:
            return [f"the name {RESERVED}"]
        if len(dimensions) > self.rules.max_dimensions:
            return [too_many_dimensions(len(dimensions), self.rules.max_dimensions)]
        if STORED.keep(name, dimensions):
            return []
        faults = [f"the name {fault}" for fault in STORED.name.faults(name)]
        for key, value in dimensions.items():
            faults += [f"the label name {shown(key)} {fault}" for fault in STORED.key.faults(key)]
            faults += [f"the value of {shown(key)} {fault}" for fault in STORED.value.faults(value)]
        return faults

    def add(self, head: bytes, time_ms: int, value: float, meta: bytes = NO_META) -> None:
        """Add a sample. ``head``: see `series_head`; ``meta``: the JSON of its value_meta. Raises `InvalidEnvelope` if
        the request has too many samples."""
        self.extend((head,), (b"%d," % time_ms,), (value,), meta)

    def extend(self, heads: Sequence[bytes], times: Sequence[bytes], values: Sequence[float], meta: bytes) -> None:
        """Add samples with the same value_meta, like `add`. ``times``: their JSON, each with the comma after it."""
        count = len(heads)
        self._bytes_left -= sum(map(len, heads)) + count * (len(meta) + _MOST_NUMBER_BYTES)
        if self.total + count > self._most or self._bytes_left < 0:
            raise self._too_large()
        self._heads += heads
        self._times += times
        self._values += values
        self._metas += [meta] * count
        self._ends += [b',"value_meta":%b}' % meta] * count
        self.total += count

    def refuse(self, place: str, rules: Iterable[str]) -> None:
        """Count a refused sample. Raises `InvalidEnvelope` like `add`."""
        self.check_count(self.total + 1)
        self._refused.add(self.total)
        self.total += 1
        if len(self._violations) < _MOST_VIOLATIONS:
            self._violations += [Violation(place, rule) for rule in rules]

    def check_count(self, count: int) -> None:
        """Raise `InvalidEnvelope` if a request has too many samples or series."""
        if count > self._most:
            raise self._too_large()

    def _too_large(self) -> InvalidEnvelope:
        rule = f"has more than {self._most} samples or series, or {MOST_BYTES} bytes of envelopes: send fewer at a time"
        return InvalidEnvelope([Violation("", rule, too_large=True)])

    def post(self) -> ParsedPost:
        """Return the valid samples, with ids that depend on series, time, value and value_meta.
        Texts are written column by column, in C."""
        heads, times, numbers = self._heads, self._times, _numbers(self._values)
        valid = list(map(b"".join, zip(heads, times, repeat(b'"value":'), numbers, self._ends)))
        digests = list(filter(None, map(_digests.find, heads)))
        if len(digests) < len(heads):
            digests = [_digests.find(head) or _digest(head) for head in heads]
        indices, violations = good_indices(self.total, self._refused), tuple(self._violations)
        return ParsedPost(valid, indices, self.total, violations, id_parts=(digests, times, numbers, self._metas))


def _numbers(values: Sequence[float]) -> list[bytes]:
    """Return the JSON of each value, with texts for values that are not finite."""
    text = json_text.write(values).replace(b"-0.0,", b"0.0,").replace(b"-0.0]", b"0.0]")
    numbers = text[1:-1].split(b",") if values else []
    if _NULL in text:  # of values that are not finite
        pairs = zip(numbers, values, strict=True)
        numbers = [json_text.write(value_text(value)) if number == _NULL else number for number, value in pairs]
    return numbers


def _digest(head: bytes) -> bytes:
    digest = hashlib.sha256(head).digest()[:16]
    _digests.keep(head, digest, len(head))
    return digest


def series_head(name: str, dimensions: Mapping[str, str]) -> bytes:
    """Return the JSON of a metric of this series up to its timestamp."""
    return b'{"name":%b,"dimensions":%b,"timestamp":' % (json_text.write(name), json_text.write_sorted(dimensions))


def shown(text: str) -> str:
    """Return a client's text, truncated, for an error message."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
