# SPDX-License-Identifier: Apache-2.0
"""Reduces the measurements of one call by key, so that the database receives each key only once.

The result does not depend on the order of rows. If several rows have the same key, the row with the greatest
``(version, value, value_meta)`` is kept. A row with the same value and value_meta counts as repeated, any other row as
conflicting. The kept row is compared with a stored row in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from monasca_common.models.rows import Measurement

# (series_id, time_ms, value, value_meta, version), and values that are not compared
MeasurementRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """The remaining rows. ``repeated`` and ``conflicting`` count the removed rows."""

    rows: list[MeasurementRow]
    repeated: int
    conflicting: int


def measurement_rows(values: Sequence[Measurement]) -> list[MeasurementRow]:
    return [(series.id, time, value, meta, version) for series, time, value, meta, version in values]


def rank(row: MeasurementRow) -> tuple[Any, ...]:
    """Return the sort key of rows with the same key: NaN is equal to NaN and greater than all numbers, as in the
    databases, and a missing value_meta is less than any other."""
    _, _, value, value_meta, version, *_ = row
    is_nan = value != value
    return (version, is_nan, 0.0 if is_nan else value, value_meta is not None, value_meta or "")


def reduced(rows: Iterable[MeasurementRow]) -> Reduced:
    winners: dict[tuple[bytes, int], MeasurementRow] = {}
    losers: list[MeasurementRow] = []
    for row in rows:
        known = winners.setdefault(row[:2], row)
        if known is row:
            continue
        if rank(row) > rank(known):
            winners[row[:2]] = row
            losers.append(known)
        else:
            losers.append(row)
    repeated = sum(rank(row)[1:] == rank(winners[row[:2]])[1:] for row in losers)
    return Reduced(list(winners.values()), repeated, len(losers) - repeated)
