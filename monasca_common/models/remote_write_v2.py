# SPDX-License-Identifier: Apache-2.0
"""Requests of Prometheus' remote write 2.0 (the message ``io.prometheus.write.v2.Request``) as samples.

A request has a table of texts, to which the labels of its series refer by number. Otherwise it resembles a request of
version 1, as which it is rewritten.
"""

from __future__ import annotations

from monasca_common.models import remote_write
from monasca_common.models.errors import InvalidEnvelope, Unreadable, Violation
from monasca_common.models.post import DEFAULT_RULES, MOST_BYTES, ParsedPost, PostRules
from monasca_common.models.remote_write import fields, varint
from monasca_common.models.write_request import field

# Protobuf tags, as in `remote_write`.
_SYMBOL, _SERIES = 0x22, 0x2A
_PACKED_REFERENCES, _REFERENCE, _SAMPLE, _HISTOGRAM = 0x0A, 0x08, 0x12, 0x1A


def parse(body: bytes, rules: PostRules = DEFAULT_RULES) -> ParsedPost:
    """Parse a request, like `remote_write.parse`."""
    try:
        rewritten = _as_version_1(body)
    except IndexError:
        raise Unreadable("is not a protobuf message of remote write 2.0: it is truncated") from None
    return remote_write.parse(rewritten, rules)


def _as_version_1(body: bytes) -> bytes:
    parts = list(fields(body))
    symbols = [content for key, content in parts if key == _SYMBOL]
    names = [field(0x0A, symbol) for symbol in symbols]
    values = [field(0x12, symbol) for symbol in symbols]
    rewritten: list[bytes] = []
    bytes_left = MOST_BYTES
    for series in (content for key, content in parts if key == _SERIES):
        references, samples = _series(series)
        if len(references) % 2 or max(references, default=-1) >= len(symbols):
            raise Unreadable(f"is not valid: the labels of timeseries[{len(rewritten)}] refer to missing symbols")
        of_names, of_values = references[::2], references[1::2]
        bytes_left -= sum(len(names[name]) for name in of_names) + sum(len(values[value]) for value in of_values)
        if bytes_left < 0:  # labels of a few bytes can refer to a symbol of a MiB
            rule = f"has more than {MOST_BYTES >> 20} MiB of labels: send fewer samples per request"
            raise InvalidEnvelope([Violation("", rule, too_large=True)])
        labels = [field(0x0A, names[n] + values[v]) for n, v in zip(of_names, of_values, strict=True)]
        rewritten.append(field(0x0A, b"".join(labels) + samples))
    return b"".join(rewritten)


def _series(series: bytes) -> tuple[list[int], bytes]:
    """Return the symbols of the labels' names and values, and the samples as fields of version 1."""
    references: list[int] = []
    samples = []
    for key, content in fields(series):
        if key in (_PACKED_REFERENCES, _REFERENCE):
            at = 0
            while at < len(content):
                reference, at = varint(content, at)
                references.append(reference)
        elif key == _SAMPLE:
            samples.append(field(0x12, content))
        elif key == _HISTOGRAM:
            samples.append(field(0x22, content))
    return references, b"".join(samples)
