# SPDX-License-Identifier: Apache-2.0
"""Stores rows in parts that the database completes within its time-outs; each part is a claim.

After each failed attempt, a batch that is too large for one transaction is halved by offset into [start, mid) and
[mid, end), down to a single message, which is never split. The size that succeeded is kept, and grows again when the
database is fast.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from monasca_common.storage.base import Claim
from monasca_common.storage.batch_rows import BatchRows
from monasca_common.storage.errors import MessagesRefused, RowsRefused, StorageUnavailable, TooMuchAtOnce


class WriteResult(Protocol):
    @property
    def skipped(self) -> int:
        """The number of rows that were already stored."""


R = TypeVar("R", bound=BatchRows)
W = TypeVar("W", bound=WriteResult)

_QUICK = 0.25  # the size is doubled if a write takes less than this share of the time of the failed write
# It is also doubled this long after a failure, at least this multiple of its time, because a shortage may have ended.
_REST_SECONDS, _REST = 60.0, 100.0


@dataclass(frozen=True, slots=True)
class Part(Generic[W]):
    """A stored part: all offsets below ``claim.end`` are accounted for."""

    claim: Claim
    written: W


class PartSize:
    """The maximum number of rows of one write, or ``None`` for no limit. Thread-safe."""

    def __init__(self) -> None:
        self.most_rows: int | None = None
        self._too_long_seconds = self._failed_at = 0.0
        self._lock = threading.Lock()

    def too_much(self, rows: int, seconds: float) -> None:
        """Record that a write of ``rows`` failed after ``seconds``."""
        with self._lock:
            self._failed_at = time.monotonic()
            half = max(1, rows // 2)
            if self.most_rows is None or half < self.most_rows:
                self.most_rows, self._too_long_seconds = half, seconds

    def worked(self, rows: int, seconds: float) -> None:
        with self._lock:
            rest_seconds = time.monotonic() - self._failed_at
            grows = seconds < _QUICK * self._too_long_seconds
            grows |= rest_seconds >= max(_REST_SECONDS, _REST * self._too_long_seconds)
            if self.most_rows is not None and rows >= self.most_rows and grows:
                self.most_rows *= 2


def write(store: Callable[[Claim, R], W], claim: Claim, rows: R, size: PartSize) -> Iterator[Part[W]]:
    """Call ``store``, such as `Writer.write`, with each part of ``rows``, and yield each stored part.

    Raises the errors of `Writer.write`, but `MessagesRefused` instead of `RowsRefused`; parts that were already yielded
    remain stored. After `TooMuchAtOnce` the next attempt writes smaller parts.
    """
    part = claim
    while True:
        most = size.most_rows
        part = replace(part, end=_end(claim, part.start, rows, most))
        chosen = rows if part == claim else rows.between(part.start, part.end)
        count = len(chosen) if most is None or part.end == claim.end else most
        started_at = time.monotonic()
        try:
            written = store(part, chosen)
        except RowsRefused as error:
            raise MessagesRefused({chosen.origin(n): reason for n, reason in error.reasons.items()}) from error
        except TooMuchAtOnce as error:
            size.too_much(len(chosen), time.monotonic() - started_at)
            if len(chosen) and chosen.offsets[0] < chosen.offsets[-1]:
                raise
            raise StorageUnavailable(f"the database cannot store even a single message now: {error}") from error
        if not written.skipped:
            size.worked(count, time.monotonic() - started_at)
        yield Part(part, written)
        if part.end == claim.end:
            return
        part = replace(part, start=part.end)


def _end(claim: Claim, start: int, rows: BatchRows, most: int | None) -> int:
    """Return the end of the longest part that begins at ``start`` and has whole messages, at most ``most`` rows, but at
    least one message."""
    if most is None or len(rows) <= most:
        return claim.end
    offsets = rows.offsets
    first = bisect_left(offsets, start)
    if first + most >= len(offsets):
        return claim.end
    if offsets[first + most] > offsets[first]:
        return offsets[first + most]
    following = bisect_right(offsets, offsets[first])
    return offsets[following] if following < len(offsets) else claim.end
