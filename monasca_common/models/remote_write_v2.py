# SPDX-License-Identifier: Apache-2.0
"""Requests of Prometheus' remote write 2.0 (the message ``io.prometheus.write.v2.Request``) as samples.

A request has a table of texts (symbols), to which the labels of a series refer by number. Each series is rewritten as
one of version 1. Metadata and start timestamps are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from monasca_common.models import remote_write as version_1
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.post import MOST_BYTES, PostRules
from monasca_common.models.remote_write import fields, varint
from monasca_common.models.write_request import field

# Protobuf tags, as in `remote_write`.
_SYMBOL, _SERIES = 0x22, 0x2A
_PACKED_REFERENCES, _REFERENCE, _SAMPLE, _HISTOGRAM, _EXEMPLAR = 0x0A, 0x08, 0x12, 0x1A, 0x22
_VERSION_1 = {_SAMPLE: version_1.SAMPLE, _HISTOGRAM: version_1.HISTOGRAM}
_MOST_SYMBOLS = 200_000
_MOST_LABELS = 500_000


class _RequestParser(version_1.SeriesParser):
    def __init__(self, rules: PostRules) -> None:
        super().__init__(rules)
        self._symbols: list[bytes] = []
        self._bytes_left = MOST_BYTES
        self._references_left = 2 * _MOST_LABELS

    def add_all(self, body: bytes) -> None:
        all_series = []
        for key, content in fields(body):
            if key == _SYMBOL:
                self._symbols.append(content)
                if len(self._symbols) > _MOST_SYMBOLS:
                    raise _too_large(f"{_MOST_SYMBOLS} symbols")
            elif key == _SERIES:
                all_series.append(content)
                self.samples.check_count(len(all_series))
        for self.series, series in enumerate(all_series):
            self._rewrite(series)

    def _rewrite(self, series: bytes) -> None:
        references: list[int] = []
        samples: list[bytes] = []
        place = f"timeseries[{self.series}]"
        for key, content in fields(series):
            if key in (_PACKED_REFERENCES, _REFERENCE):
                references += islice(_numbers(content), self._references_left + 1)
            elif key in _VERSION_1:
                samples.append(field(_VERSION_1[key], content))
                self.samples.check_count(len(samples))
            elif key == _EXEMPLAR:
                self.samples.refuse(place, ["exemplars are not stored: set send_exemplars to false"])
            if len(references) > self._references_left:
                raise _too_large(f"{_MOST_LABELS} labels")
        self._references_left -= len(references)
        last = max(references, default=-1)
        if len(references) % 2 == 0 and last < len(self._symbols):
            labels = self._labels(references)
            super().add_all(field(version_1.SERIES, b"".join([*labels, *samples])))
            return
        fault = "has an odd number of references to symbols"
        if last >= len(self._symbols):
            fault = f"refers to the missing symbol {last}: the request has {len(self._symbols)} symbols"
        for _ in samples:
            self.samples.refuse(place, [fault])

    def _labels(self, references: Sequence[int]) -> list[bytes]:
        """Return the labels. Raises `InvalidEnvelope` if those of all series are too long, because a series of a few
        bytes can refer to symbols of a MiB."""
        texts = [self._symbols[reference] for reference in references]
        self._bytes_left -= sum(map(len, texts))
        if self._bytes_left < 0:
            raise _too_large(f"{MOST_BYTES} bytes of labels")
        return [
            field(version_1.LABEL, field(version_1.LABEL_NAME, name) + field(version_1.LABEL_VALUE, value))
            for name, value in zip(texts[::2], texts[1::2], strict=True)
        ]


parse = _RequestParser.parse


def _numbers(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        number, at = varint(content, at)
        yield number


def _too_large(limit: str) -> InvalidEnvelope:
    return InvalidEnvelope([Violation("", f"has more than {limit}: send fewer samples per request", too_large=True)])
