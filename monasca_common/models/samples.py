# SPDX-License-Identifier: Apache-2.0
"""Samples of series from Prometheus and OpenTelemetry, as metrics for envelopes.

Names and dimensions obey `limits.STORED`, not the stricter rules of posts: any UTF-8 text without NUL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monasca_common.models import json_text
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.limits import MOST_DIMENSIONS, STORED, too_many_dimensions
from monasca_common.models.metric import RESERVED
from monasca_common.models.numbers import STALE, value_text
from monasca_common.models.post import MOST_BYTES, MOST_ELEMENTS, ParsedPost
from monasca_common.models.times import ANY_TIME, Window

NO_META = "null"
STALE_META = json_text.write(STALE).decode()
_MOST_VIOLATIONS = 100
_NOT_FINITE = {"nan", "inf", "-inf"}


class Samples:
    """Collects the samples of one request, and the violations of those that are refused.

    ``allowed``: the range of timestamps. ``reserved_names``: names that no metric may have. ``most``: the number of
    samples.
    """

    def __init__(
        self,
        *,
        allowed: Window = ANY_TIME,
        max_dimensions: int = MOST_DIMENSIONS,
        reserved_names: frozenset[str] = frozenset(),
        most: int = MOST_ELEMENTS,
    ) -> None:
        self.valid: list[bytes] = []
        self.total = 0
        self._allowed = allowed
        self.max_dimensions = max_dimensions
        self._reserved_names = reserved_names
        self._most = most
        self._indices: list[int] = []
        self._bytes_left = MOST_BYTES
        self._violations: list[Violation] = []

    def faults(self, name: str, dimensions: Mapping[str, str]) -> list[str]:
        """Return the rules that a series breaks."""
        if name in self._reserved_names:
            return [f"the name {RESERVED}"]
        if len(dimensions) > self.max_dimensions:
            return [too_many_dimensions(len(dimensions), self.max_dimensions)]
        if STORED.keep(name, dimensions):
            return []
        faults = [f"the name {fault}" for fault in STORED.name.faults(name)]
        for key, value in dimensions.items():
            faults += [f"the label name {shown(key)} {fault}" for fault in STORED.key.faults(key)]
            faults += [f"the value of {shown(key)} {fault}" for fault in STORED.value.faults(value)]
        return faults

    def time_fault(self, time_ms: int) -> str | None:
        return self._allowed.fault(time_ms)

    def add(self, head: str, time_ms: int, value: float, meta: str = NO_META) -> None:
        """Add a sample. ``head``: see `series_head`; ``meta``: the JSON of its value_meta. Raises `InvalidEnvelope` if
        the request has too many samples."""
        number = repr(value + 0.0)  # + 0.0: -0.0 equals 0.0
        if number in _NOT_FINITE:
            number = f'"{value_text(value)}"'
        metric = f'{head}{time_ms},"value":{number},"value_meta":{meta}}}'.encode()
        self._bytes_left -= len(metric)
        if self.total >= self._most or self._bytes_left < 0:
            raise self._too_large()
        self._indices.append(self.total)
        self.valid.append(metric)
        self.total += 1

    def refuse(self, place: str, rules: Iterable[str]) -> None:
        """Count a refused sample. Raises `InvalidEnvelope` like `add`."""
        self.check_count(self.total + 1)
        self.total += 1
        if len(self._violations) < _MOST_VIOLATIONS:
            self._violations += [Violation(place, rule) for rule in rules]

    def check_count(self, count: int) -> None:
        """Raise `InvalidEnvelope` if a request has too many samples, or series."""
        if count > self._most:
            raise self._too_large()

    def _too_large(self) -> InvalidEnvelope:
        rule = f"has more than {self._most} samples or series, or {MOST_BYTES} bytes of envelopes: send fewer at a time"
        return InvalidEnvelope([Violation("", rule, too_large=True)])

    def post(self) -> ParsedPost:
        return ParsedPost(self.valid, self._indices, self.total, tuple(self._violations))


def series_head(name: str, dimensions: Mapping[str, str]) -> str:
    """Return the JSON of a metric of this series up to its timestamp."""
    return (
        b'{"name":%b,"dimensions":%b,"timestamp":' % (json_text.write(name), json_text.write_sorted(dimensions))
    ).decode()


def shown(text: str) -> str:
    """Return a client's text, truncated, for an error message."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")
