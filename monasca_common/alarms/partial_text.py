# SPDX-License-Identifier: Apache-2.0
"""Sums and readings of partials as texts, which databases can concatenate: a blank between two adds them up."""

from __future__ import annotations

from collections.abc import Iterable

from monasca_common.models.readings import Reading


def sums_text(sums: Iterable[float]) -> str:
    return " ".join(map(repr, sums))


def sums_of(text: str | None) -> tuple[float, ...]:
    return tuple(map(float, (text or "").split()))


def readings_text(readings: Iterable[Reading]) -> str:
    return " ".join(",".join(map(repr, reading)) for reading in readings)


def readings_of(text: str | None) -> tuple[Reading, ...]:
    """In the order of the text."""
    return tuple(_reading(*each.split(",")) for each in text.split()) if text else ()


def _reading(timestamp: str, partition: str, offset: str, quantity: str) -> Reading:
    return Reading(float(timestamp), int(partition), int(offset), float(quantity))
