# SPDX-License-Identifier: Apache-2.0
"""Series of measurements and their ids, which all writers and readers compute in the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """A tenant's metric in a region with a set of dimensions. ``id`` is the `series_id` of the other fields."""

    id: bytes
    tenant: str
    region: str
    name: str
    dimensions: Mapping[str, str]


def series_id(tenant: str, region: str, name: str, dimensions: Mapping[str, str]) -> bytes:
    """Return the first 16 bytes of the SHA-256 of the parts in UTF-8, each after its length (4 bytes, big-endian).

    The parts are tenant, region, name, and the key and value of each dimension, sorted by the bytes of the keys.
    """
    parts = [part.encode() for part in (tenant, region, name)]
    for key, value in sorted((key.encode(), value.encode()) for key, value in dimensions.items()):
        parts += (key, value)
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()[:16]
