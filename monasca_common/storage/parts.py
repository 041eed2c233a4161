# SPDX-License-Identifier: Apache-2.0
"""Writes rows in parts that the database completes within its time-outs; each part is a claim.

After each failed attempt, a batch that is too large for one transaction is halved by offset, [start, mid) and
[mid, end), down to a single row. The size that succeeded is kept, and grows again when the database is fast.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from monasca_common.storage.base import Claim, Rows, Writer, Written
from monasca_common.storage.errors import RowsRefused, StorageUnavailable, TooMuchAtOnce

_QUICK = 0.25  # a write doubles the size if it takes less than this share of the time of the failed write


@dataclass(frozen=True, slots=True)
class Part:
    """A stored part: all offsets below ``claim.end`` are accounted for."""

    claim: Claim
    written: Written


class PartSize:
    """The maximum number of rows of one write; ``None``: no limit. Thread-safe."""

    def __init__(self) -> None:
        self.most_rows: int | None = None
        self._too_long_seconds = 0.0
        self._lock = threading.Lock()

    def too_much(self, rows: int, seconds: float) -> bool:
        """Record that a write of ``rows`` failed after ``seconds``. Return whether a smaller part is possible."""
        with self._lock:
            half = max(1, rows // 2)
            if self.most_rows is None or half < self.most_rows:
                self.most_rows, self._too_long_seconds = half, seconds
        return rows > 1

    def worked(self, rows: int, seconds: float) -> None:
        with self._lock:
            if self.most_rows is not None and rows >= self.most_rows and seconds < _QUICK * self._too_long_seconds:
                self.most_rows *= 2


def write(
    writer: Writer,
    claim: Claim,
    rows: Rows,
    size: PartSize,
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Part]:
    """Store ``rows`` part by part, and yield each stored part.

    Raises the errors of `Writer.write`; parts that were yielded before stay stored. After `TooMuchAtOnce` the next
    attempt writes smaller parts. The positions in `RowsRefused` are those in ``rows``.
    """
    first = 0
    while True:
        most = size.most_rows
        last = len(rows.values) if most is None else min(first + most, len(rows.values))
        end = rows.offsets[last] if last < len(rows.values) else claim.end
        part = replace(claim, end=end)
        started_at = monotonic()
        try:
            written = writer.write(part, part_of(rows, first, last))
        except RowsRefused as error:
            raise RowsRefused(error.reasons, first=first) from error
        except TooMuchAtOnce as error:
            if size.too_much(last - first, monotonic() - started_at):
                raise
            raise StorageUnavailable(f"a single row is too much for the database now: {error}") from error
        if not written.skipped:
            size.worked(last - first, monotonic() - started_at)
        yield Part(part, written)
        if end == claim.end:
            return
        claim, first = replace(claim, start=end), last


def part_of(rows: Rows, start: int, stop: int | None = None) -> Rows:
    """Return the rows from ``start`` to before ``stop``."""
    if start == 0 and (stop is None or stop == len(rows.values)):
        return rows
    part = slice(start, stop)
    return Rows(rows.kind, rows.values[part], rows.offsets[part], rows.message_ids[part], rows.by_id[part])
