# SPDX-License-Identifier: Apache-2.0
"""The load: bulks at a steady rate with bursts, a wave for the alarms, and a journal of what was posted.

The content of a bulk follows from its number and time, so the journal contains only numbers and times.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monasca_common.quickstart.poster import PostedBulk, Poster

NAMES = ("cpu.percent", "mem.usable_mb", "load.avg_1_min")  # the pipeline's specifications aggregate these
HOSTS = 10
BULK = len(NAMES) * HOSTS
WAVE = "endurance.state"
WAVES = 5
THRESHOLD = 10.0
_WAVE_EVERY_SECONDS = 2.0
_FLIP_PROBABILITY = 0.1
_BURST_EVERY_SECONDS, _BURST_SECONDS, _BURST_FACTOR = 600.0, 20.0, 3.0
_BURST_AT_SECONDS = 300.0
_CLIENTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")  # nginx chooses the API by the client's address
_THREADS = 4
_TICK_SECONDS = 0.05
_METRICS, _ALARMS = "metrics", "alarms"


@dataclass(slots=True)
class JournalEntry:
    """A bulk of metrics, or a step of the wave, numbered from 0. ``latency``: seconds to its acknowledgement."""

    kind: str
    number: int
    time_ms: int
    acknowledged: bool = False


def metrics(number: int, time_ms: int) -> list[dict[str, Any]]:
    """Return bulk ``number``."""
    return [
        {"name": name, "dimensions": {"hostname": f"host-{host}"}, "timestamp": time_ms, "value": float(number)}
        for name in NAMES
        for host in range(HOSTS)
    ]


def wave(seed: int, series: int) -> Iterator[float]:
    """Yield the values of an alarm's series: below the threshold, or above it."""
    chance = random.Random(f"{seed}/{series}")
    above = False
    while True:
        yield THRESHOLD + (1.0 if above else -1.0)
        above ^= chance.random() < _FLIP_PROBABILITY


def rate_at(seconds: float, steady: float) -> float:
    """Return the rate of metrics per second, which is tripled for 20 s in the middle of each ten minutes."""
    in_burst = 0.0 <= seconds % _BURST_EVERY_SECONDS - _BURST_AT_SECONDS < _BURST_SECONDS
    return steady * (_BURST_FACTOR if in_burst else 1.0)


def read_journal(path: Path) -> dict[tuple[str, int], JournalEntry]:
    """Return the bulks of a journal; its last line can be incomplete."""
    entries: dict[tuple[str, int], JournalEntry] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        key = record["kind"], record["number"]
        if "time_ms" in record:
            entries[key] = JournalEntry(*key, record["time_ms"])
        else:
            entries[key].acknowledged = True
    return entries


class Load:
    """Posts until `finish`. ``identity``: the id of the run, for the keys of its posts."""

    def __init__(self, identity: str, seed: int, port: int, journal: Path, rate: float) -> None:
        self._identity = identity
        self._journal = journal
        self._rate = rate
        self._posters = [Poster("127.0.0.1", port, threads=_THREADS, source=client) for client in _CLIENTS]
        # One thread, so that the steps are in the log in order of their times.
        self._wave_poster = Poster("127.0.0.1", port, threads=1)
        self._waves = [wave(seed, series) for series in range(WAVES)]
        self._next = {_METRICS: 0, _ALARMS: 0}
        self._last_ms = {_METRICS: 0, _ALARMS: 0}
        self._outstanding: list[tuple[str, PostedBulk]] = []
        self._latencies_ms: list[float] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.refused: list[str] = []

    def start(self, elapsed: float) -> None:
        """Post the bulks that a previous process has left, and then bulks at the rate for ``elapsed`` seconds."""
        entries = read_journal(self._journal)
        with self._journal.open("ab") as file:
            file.write(b"\n")  # ends an incomplete line
        self._file = self._journal.open("a", buffering=1)
        for entry in sorted(entries.values(), key=lambda each: each.number):
            self._next[entry.kind], self._last_ms[entry.kind] = entry.number + 1, entry.time_ms
            values = [next(each) for each in self._waves] if entry.kind == _ALARMS else []
            if not entry.acknowledged:
                self._hand_over(entry, values)
        self._thread = threading.Thread(target=self._run, args=(elapsed,), name="load", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> int:
        """Stop, and wait at most ``seconds`` for acknowledgements. Return the number of unacknowledged bulks."""
        self._stop.set()
        self._thread.join()
        for poster in (*self._posters, self._wave_poster):
            poster.finish(seconds)
            self.refused += poster.refused
        self._collect()
        return len(self._outstanding)

    def latencies_ms(self) -> list[float]:
        """Return and forget the latencies of the acknowledged bulks, in ms."""
        with self._lock:
            taken, self._latencies_ms = self._latencies_ms, []
        return taken

    def _run(self, elapsed: float) -> None:
        began = time.monotonic() - elapsed
        due = {_METRICS: time.monotonic(), _ALARMS: time.monotonic()}
        while not self._stop.wait(_TICK_SECONDS):
            now = time.monotonic()
            while due[_METRICS] <= now:
                due[_METRICS] += BULK / rate_at(now - began, self._rate)
                self._post(_METRICS, [])
            while due[_ALARMS] <= now:
                due[_ALARMS] += _WAVE_EVERY_SECONDS
                self._post(_ALARMS, [next(each) for each in self._waves])
            self._collect()

    def _post(self, kind: str, values: list[float]) -> None:
        # Two bulks with the same time would have the same rows.
        self._last_ms[kind] = max(time.time_ns() // 1_000_000, self._last_ms[kind] + 1)
        entry = JournalEntry(kind, self._next[kind], self._last_ms[kind])
        self._next[kind] += 1
        self._write({"kind": kind, "number": entry.number, "time_ms": entry.time_ms})
        self._hand_over(entry, values)

    def _hand_over(self, entry: JournalEntry, values: list[float]) -> None:
        if entry.kind == _METRICS:
            content = metrics(entry.number, entry.time_ms)
        else:
            content = [
                {"name": WAVE, "dimensions": {"series": str(series)}, "timestamp": entry.time_ms, "value": value}
                for series, value in enumerate(values)
            ]
        key = f"{self._identity}-{entry.kind}-{entry.number}"
        bulk = PostedBulk(entry.number, entry.time_ms, "/v2.0/metrics", content, len(content), key)
        self._outstanding.append((entry.kind, bulk))
        poster = self._wave_poster if entry.kind == _ALARMS else self._posters[entry.number % len(self._posters)]
        poster.post(bulk)

    def _collect(self) -> None:
        """Write the acknowledgements to the journal."""
        waiting = []
        for kind, bulk in self._outstanding:
            if bulk.acknowledged_at is None or bulk.posted_at is None:
                waiting.append((kind, bulk))
                continue
            self._write({"kind": kind, "number": bulk.number})
            with self._lock:
                self._latencies_ms.append((bulk.acknowledged_at - bulk.posted_at) * 1000)
        self._outstanding = waiting

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
