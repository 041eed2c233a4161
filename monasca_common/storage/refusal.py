# SPDX-License-Identifier: Apache-2.0
"""Which rows a database refuses, found by halves: one bad row must not sink its batch."""

from __future__ import annotations

from collections.abc import Callable


def find_refused(count: int, trial: Callable[[int, int], str | None]) -> dict[int, str]:
    """Why, by position, for those of ``count`` rows that are refused also when alone.

    ``trial(start, stop)`` tries these rows without keeping them: why the database refuses them, or ``None``.
    About ``2 * log2(count)`` trials for each bad row.
    """
    reasons: dict[int, str] = {}
    spans = [(0, count)]
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
