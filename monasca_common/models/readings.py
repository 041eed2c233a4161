# SPDX-License-Identifier: Apache-2.0
"""Readings of metrics, and sums of their values that depend neither on order nor on how they were split."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum
from typing import NamedTuple


class Reading(NamedTuple):
    """One record: when it happened (ms, with the fraction it was sent with), where in the topic it is, its value."""

    timestamp_ms: float
    partition: int
    offset: int
    quantity: float


def exact_sum(values: Iterable[float]) -> tuple[float, ...]:
    """The exact sum as floats, greatest first: each is the float nearest to the rest. Order and split do not matter."""
    rest = list(values)
    parts: list[float] = []
    while (part := fsum(rest)) != 0.0:
        parts.append(part)
        rest.append(-part)
    return tuple(parts)
