# SPDX-License-Identifier: Apache-2.0
"""Finds the rows that a database refuses, by halving a batch, so that one bad row does not fail the others."""

from __future__ import annotations

from collections.abc import Callable


def find_refused(stop: int, trial: Callable[[int, int], str | None], *, start: int = 0) -> dict[int, str]:
    """Return the reason, by position, for each row from ``start`` (inclusive) to ``stop`` (exclusive) that is refused
    on its own.

    ``trial(start, stop)`` stores these rows, rolls back, and returns why the database refuses them, or ``None``. There
    are about ``2 * log2(stop - start)`` trials for each bad row.
    """
    reasons: dict[int, str] = {}
    spans = [(start, stop)]
    while spans:
        start, stop = spans.pop()
        reason = trial(start, stop) if start < stop else None
        if reason is None:
            continue
        if stop - start == 1:
            reasons[start] = reason
        else:
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
    return reasons
