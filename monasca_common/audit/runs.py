# SPDX-License-Identifier: Apache-2.0
"""Sets of offsets of one partition, as ascending runs ``(first, next)`` with gaps between them.

The audit reports sets of offsets, because a repeated report (for example after a crash) does not change their union.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

Runs = tuple[tuple[int, int], ...]


def runs_of(offsets: Iterable[int]) -> Runs:
    """Return the set of these offsets."""
    return union(tuple((offset, offset + 1) for offset in sorted(offsets)))


def union(*several: Runs) -> Runs:
    found: list[tuple[int, int]] = []
    for first, following in sorted(run for runs in several for run in runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], following))
        elif first < following:
            found.append((first, following))
    return tuple(found)


def difference(runs: Runs, taken: Runs) -> Runs:
    """Return the offsets that are in ``runs`` but not in ``taken``."""
    return intersection(runs, _complement(taken, runs[-1][1])) if runs else ()


def intersection(runs: Runs, others: Runs) -> Runs:
    return tuple(_common(runs, others))


def size(runs: Runs) -> int:
    return sum(following - first for first, following in runs)


def _common(runs: Runs, others: Runs) -> Iterator[tuple[int, int]]:
    left = right = 0
    while left < len(runs) and right < len(others):
        first, following = max(runs[left][0], others[right][0]), min(runs[left][1], others[right][1])
        if first < following:
            yield first, following
        if runs[left][1] <= others[right][1]:
            left += 1
        else:
            right += 1


def _complement(runs: Runs, end: int) -> Runs:
    """Return the offsets below ``end`` that are not in ``runs``."""
    edges = ((0, 0), *runs, (max(end, runs[-1][1] if runs else 0), 0))
    return tuple((one[1], other[0]) for one, other in pairwise(edges) if one[1] < other[0])
