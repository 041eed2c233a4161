# SPDX-License-Identifier: Apache-2.0
"""Reads the database over a separate connection: the times of new rows, and all rows at the end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monasca_common.quickstart.poster import PostedBulk

POLL_SECONDS = 0.01


class RowWatch:
    """Records about every 10 ms which bulks of metrics are stored. A bulk is identified by its time."""

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
        """Return the number of bulks with missing rows."""
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
                    self._poll(connection)

    def _poll(self, connection: sqlite3.Connection) -> None:
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
    """The counts. ``lost``: acknowledged items without a row. ``duplicates``: rows in excess of one per posted item."""

    rows: int
    lost: int
    duplicates: int


def select(database: Path, statement: str, *parameters: object) -> list[Any]:
    """Return the rows of a query over a separate connection that only reads."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(statement, parameters).fetchall()


def count(database: Path, metrics: Iterable[PostedBulk], events: Iterable[PostedBulk]) -> Count:
    """Compare posted items with stored rows.

    The table of measurements cannot contain duplicates. The table of events can contain duplicates, because an event
    that is published again with a different id is stored as another row; so each run also posts numbered events.
    """
    by_time = Counter(dict(select(database, "SELECT time, count(*) FROM measurements GROUP BY time")))
    numbers = Counter(number for (number,) in select(database, "SELECT json_extract(payload, '$.number') FROM events"))
    metrics, events = list(metrics), list(events)
    lost = sum(max(0, bulk.size - by_time[bulk.time_ms]) for bulk in metrics if bulk.acknowledged_at)
    lost += sum(1 for bulk in events if bulk.acknowledged_at and not numbers[bulk.number])
    rows = by_time.total() + numbers.total()
    posted = Counter({bulk.time_ms: bulk.size for bulk in metrics})
    duplicates = (by_time - posted).total() + (numbers - Counter(bulk.number for bulk in events)).total()
    return Count(rows, lost, duplicates)
