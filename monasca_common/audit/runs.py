# SPDX-License-Identifier: Apache-2.0
"""Sets of offsets of one partition, as ascending runs ``(first, next)`` with gaps between them.

The audit reports sets of offsets, because a repeated report (for example after a crash) does not change their union.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

Runs = tuple[tuple[int, int], ...]
END = 2**63  # after all offsets


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
    edges = [0, *chain.from_iterable(taken), END]
    return intersection(runs, tuple(zip(edges[::2], edges[1::2], strict=True)))


def intersection(runs: Runs, others: Runs) -> Runs:
    found: list[tuple[int, int]] = []
    left = right = 0
    while left < len(runs) and right < len(others):
        first, following = max(runs[left][0], others[right][0]), min(runs[left][1], others[right][1])
        if first < following:
            found.append((first, following))
        if runs[left][1] <= others[right][1]:
            left += 1
        else:
            right += 1
    return tuple(found)


def size(runs: Runs) -> int:
    return sum(following - first for first, following in runs)
