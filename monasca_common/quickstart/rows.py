# SPDX-License-Identifier: Apache-2.0
"""Looks at the database from outside, with a reader of its own: when rows came, and which are there at the end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from monasca_common.quickstart.poster import PostedBulk

POLL_SECONDS = 0.01


class RowWatch:
    """Notes, about every 10 ms, which bulks of metrics have all their rows. A bulk is known by its time."""

    def __init__(self, database: Path) -> None:
        self._uri = f"file:{database}?mode=ro"
        self._waiting: dict[int, PostedBulk] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-watch", daemon=True)
        self._thread.start()

    def expect(self, bulk: PostedBulk) -> None:
        with self._lock:
            self._waiting[bulk.time_ms] = bulk

    def waiting(self) -> int:
        """Bulks of which rows are still missing."""
        with self._lock:
            return len(self._waiting)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._uri, uri=True)) as connection:
            seen_version = None
            while not self._stop.wait(POLL_SECONDS):
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                if version != seen_version:
                    seen_version = version
                    self._look(connection)

    def _look(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            waiting = dict(self._waiting)
        if not waiting:
            return
        counts = connection.execute(
            "SELECT time, count(*) FROM measurements WHERE time >= ? GROUP BY time", (min(waiting),)
        ).fetchall()
        now = time.monotonic()
        for time_ms, count in counts:
            bulk = waiting.get(time_ms)
            if bulk is not None and count >= bulk.size:
                bulk.stored_at = now
                with self._lock:
                    self._waiting.pop(time_ms, None)


@dataclass(frozen=True, slots=True)
class Count:
    """``lost``: acknowledged, and no row. ``duplicates``: rows beyond one for each item that was posted."""

    rows: int
    lost: int
    duplicates: int


def count(database: Path, metrics: Iterable[PostedBulk], events: Iterable[PostedBulk]) -> Count:
    """Compare what was posted with what is stored.

    A table of measurements cannot hold a row twice, whatever is written to it. One of events can: an event that was
    published again under another id is another row. So each run posts events as well, with a number in each.
    """
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        by_time = Counter(dict(connection.execute("SELECT time, count(*) FROM measurements GROUP BY time")))
        numbers = Counter(
            number for (number,) in connection.execute("SELECT json_extract(payload, '$.number') FROM events")
        )
    metrics, events = list(metrics), list(events)
    lost = sum(max(0, bulk.size - by_time[bulk.time_ms]) for bulk in metrics if bulk.acknowledged_at)
    lost += sum(1 for bulk in events if bulk.acknowledged_at and not numbers[bulk.number])
    rows = by_time.total() + numbers.total()
    posted = Counter({bulk.time_ms: bulk.size for bulk in metrics})
    duplicates = (by_time - posted).total() + (numbers - Counter(bulk.number for bulk in events)).total()
    return Count(rows, lost, duplicates)
