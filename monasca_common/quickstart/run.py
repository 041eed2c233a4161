# SPDX-License-Identifier: Apache-2.0
"""A run: posts metrics, freezes Kafka, kills the persister, waits for every row, and counts rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from monasca_common.devbroker import Node
from monasca_common.quickstart.poster import PostedBulk, Poster
from monasca_common.quickstart.rows import RowWatch, count
from monasca_common.quickstart.services import PUBLISH_SECONDS, ServiceFailed, ServiceProcess
from monasca_common.quickstart.table import RunSummary, percentile

if TYPE_CHECKING:
    from monasca_common.quickstart.own_metrics import OwnMetrics

_BETWEEN_POSTS_SECONDS = 0.1
_EVENT_EVERY = 5  # number of bulks of metrics
_POSTING_THREADS = 4
_FIRST_ROW_SECONDS = 60.0
_FINISH_SECONDS = 60.0
_FREEZE_AT = 0.25  # fraction of the run
_FROZEN_SECONDS = PUBLISH_SECONDS * 2  # so that the outcome of some messages is unknown
_KILL_AT = 0.5
_REPORT_SECONDS = 5.0


class Run:
    """Posts for ``seconds``. `summary` is also valid after an error."""

    def __init__(
        self,
        kafka: Node,
        persister: ServiceProcess,
        database: Path,
        port: int,
        *,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._kafka = kafka
        self._say = say
        self._persister = persister
        self._database = database
        self._seconds = seconds
        self._metrics: list[PostedBulk] = []
        self._events: list[PostedBulk] = []
        self._freezes = self._kills = 0
        self._disturbances: list[tuple[float, Callable[[], None]]] = []  # the next disturbances, with their times
        self._started = self._reported = time.monotonic()
        self._watch = RowWatch(database)
        self._poster = Poster("127.0.0.1", port, threads=_POSTING_THREADS)

    def go(self) -> None:
        """Post, and wait for the rows."""
        from monasca_common.quickstart.own_metrics import OwnMetrics  # requires an extra

        own = OwnMetrics()
        try:
            self._wait_for_first_row(own)
            self._post_and_wait(own)
        finally:
            self._kafka.thaw()
            self._watch.stop()

    def _post_and_wait(self, own: OwnMetrics) -> None:
        self._started = self._reported = time.monotonic()
        self._post(own, self._started)
        self._say("posting has ended; waiting for the last rows")
        self._poster.finish(_FINISH_SECONDS)
        if self._poster.refused:
            raise ServiceFailed(f"the API refused a request: {self._poster.refused[0]}")
        deadline = time.monotonic() + _FINISH_SECONDS
        while not self._all_stored() and time.monotonic() < deadline:
            self._persister.check()
            time.sleep(_BETWEEN_POSTS_SECONDS)

    def _wait_for_first_row(self, own: OwnMetrics) -> None:
        self._post_one(own, 0)
        self._persister.wait_until(lambda: not self._watch.waiting(), _FIRST_ROW_SECONDS, "stored no row")

    def _post(self, own: OwnMetrics, started: float) -> None:
        freeze_at, kill_at = (started + share * self._seconds for share in (_FREEZE_AT, _KILL_AT))
        self._disturbances = [(freeze_at, self._freeze), (kill_at, self._kill)]
        for number in itertools.count(1):
            now = time.monotonic()
            if now >= started + self._seconds and not self._disturbances:  # disturbances can be late on a slow machine
                return
            if self._disturbances and now >= self._disturbances[0][0]:
                self._disturbances.pop(0)[1]()
            self._post_one(own, number)
            self._persister.check()
            self._report_progress(started)
            time.sleep(max(0.0, started + number * _BETWEEN_POSTS_SECONDS - time.monotonic()))

    def _post_one(self, own: OwnMetrics, number: int) -> None:
        time_ms = time.time_ns() // 1_000_000
        if self._metrics:
            time_ms = max(time_ms, self._metrics[-1].time_ms + 1)
        sample = own.sample(time_ms)
        bulk = PostedBulk(number, time_ms, "/v2.0/metrics", sample, len(sample))
        self._metrics.append(bulk)
        self._watch.expect(bulk)
        self._poster.post(bulk)
        if number % _EVENT_EVERY == 0:
            event = {"event_type": "quickstart.posted", "payload": {"number": number}}
            content = {"timestamp": time_ms, "events": [{"dimensions": {}, "event": event}]}
            self._events.append(PostedBulk(number, time_ms, "/v1.0/events", content, 1))
            self._poster.post(self._events[-1])

    def _freeze(self) -> None:
        self._freezes += 1
        self._kafka.freeze()
        self._disturbances.insert(0, (time.monotonic() + _FROZEN_SECONDS, self._thaw))
        self._say(f"Kafka is frozen for {_FROZEN_SECONDS:.0f} s (SIGSTOP), and acknowledges nothing")

    def _thaw(self) -> None:
        self._kafka.thaw()
        self._say("Kafka continues")

    def _kill(self) -> None:
        self._kills += 1
        killed = self._persister.kill_workers()
        self._say(f"the persister was killed ({killed} process{'es' if killed != 1 else ''}, SIGKILL)")

    def _all_stored(self) -> bool:
        if self._watch.waiting():
            return False
        found = count(self._database, self._metrics, self._events)
        return found.rows >= sum(bulk.size for bulk in self._metrics + self._events)

    def summary(self) -> RunSummary:
        """Return the counts of posted messages and stored rows so far."""
        bulks = self._metrics + self._events
        found = count(self._database, self._metrics, self._events)
        latencies = [
            (bulk.stored_at - bulk.posted_at) * 1000
            for bulk in self._metrics[1:]  # the latency of the first bulk includes the start of the services
            if bulk.stored_at is not None and bulk.posted_at is not None
        ]
        return RunSummary(
            seconds=round(time.monotonic() - self._started, 1),
            posted=sum(bulk.size for bulk in bulks),
            acknowledged=self._acknowledged(),
            rows=found.rows,
            duplicates=found.duplicates,
            lost=found.lost,
            repeated_posts=sum(max(0, bulk.attempts - 1) for bulk in bulks),
            kafka_freezes=self._freezes,
            persister_kills=self._kills,
            p50_ms=percentile(latencies, 0.5),
            p99_ms=percentile(latencies, 0.99),
        )

    def _acknowledged(self) -> int:
        return sum(bulk.size for bulk in self._metrics + self._events if bulk.acknowledged_at is not None)

    def _report_progress(self, started: float) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            posted = sum(bulk.size for bulk in self._metrics + self._events)
            self._say(f"{now - started:.0f} s: {posted:,} posted, {self._acknowledged():,} acknowledged")
