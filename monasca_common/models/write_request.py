# SPDX-License-Identifier: Apache-2.0
"""Measurements as ``prometheus.WriteRequest`` of remote write 1.0: each is a ``TimeSeries`` with one sample.

A request is a sequence of these fields, so that any field can be sent again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct

from monasca_common.models.numbers import STALE, STALE_DOUBLE
from monasca_common.models.rows import Measurement

_double = Struct("<d").pack


def encoded_labels(labels: Mapping[str, str]) -> bytes:
    """Return the labels of a ``TimeSeries``. Raises `UnicodeEncodeError` for an unpaired surrogate."""
    return b"".join(field(0x0A, field(0x0A, k.encode()) + field(0x12, v.encode())) for k, v in labels.items())


def encoded_row(labels: bytes, row: Measurement) -> bytes:
    """Return a field of ``WriteRequest``; a request is a sequence of them."""
    is_end = row.value != row.value and row.value_meta is not None and json.loads(row.value_meta) == STALE
    value = STALE_DOUBLE if is_end else _double(row.value)
    return field(0x0A, labels + field(0x12, b"\x09" + value + b"\x10" + _varint(row.time_ms & 2**64 - 1)))


def field(key: int, content: bytes) -> bytes:
    """Return a field of bytes. ``key``: its protobuf tag, below 128."""
    return bytes((key,)) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
