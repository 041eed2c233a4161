# SPDX-License-Identifier: Apache-2.0
"""What a measurement belongs to, and the id that everybody who writes or reads it computes alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One tenant's metric in one region with one set of dimensions; ``id`` is `series_id` of the rest."""

    id: bytes
    tenant: str
    region: str
    name: str
    dimensions: Mapping[str, str]


def series_id(tenant: str, region: str, name: str, dimensions: Mapping[str, str]) -> bytes:
    """16 bytes: the first half of SHA-256 over the parts, each as UTF-8 behind its length (4 bytes, big-endian).

    Dimensions follow as key, value, key, value, in order of the keys' bytes.
    """
    parts = [part.encode() for part in (tenant, region, name)]
    for key, value in sorted((key.encode(), value.encode()) for key, value in dimensions.items()):
        parts += (key, value)
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()[:16]
