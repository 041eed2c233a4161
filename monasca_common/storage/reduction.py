# SPDX-License-Identifier: Apache-2.0
"""Measurements of one call reduced by key, so that each key meets the database once.

Which row wins, and what the others count as, depends on the rows alone and not on their order: of rows with one key
the greatest ``(version, value, value_meta)`` stays, a row with the winner's value and value_meta counts as repeated,
any other as conflicting. The same holds between the winner and what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# (series_id, time_ms, value, value_meta, version)
MeasurementRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """``repeated`` and ``conflicting`` count the rows that are gone."""

    rows: list[MeasurementRow]
    repeated: int
    conflicting: int


def rank(row: MeasurementRow) -> tuple[Any, ...]:
    """What decides between two rows of one key; no value_meta is less than any."""
    _, _, value, value_meta, version = row
    return (version, value, value_meta is not None, value_meta or "")


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
    repeated = sum(row[2:4] == winners[row[:2]][2:4] for row in losers)
    return Reduced(list(winners.values()), repeated, len(losers) - repeated)
