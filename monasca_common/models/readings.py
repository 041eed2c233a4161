# SPDX-License-Identifier: Apache-2.0
"""Readings of metrics, and exact sums of their values; a database merges two sums by joining their texts with a
space."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum
from typing import NamedTuple


class Reading(NamedTuple):
    """The value of a record, its event time (ms, with the fraction that was sent), and its place in the topic."""

    timestamp_ms: float
    partition: int
    offset: int
    quantity: float


def exact_sum(values: Iterable[float]) -> tuple[float, ...]:
    """Return the exact sum as a list of floats, largest first; each is the float nearest to the remainder. The result
    depends neither on the order of the values nor on how they are divided into partial sums."""
    rest = list(values)
    parts: list[float] = []
    while (part := fsum(rest)) != 0.0:
        parts.append(part)
        rest.append(-part)
    return tuple(parts)


def sums_text(sums: Iterable[float]) -> str:
    return " ".join(map(repr, sums))


def sums_of(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))
