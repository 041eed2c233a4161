# SPDX-License-Identifier: Apache-2.0
"""A run: post, lose answers, kill the persister, wait for every row, count."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from monasca_common.quickstart.brokers import Broker
from monasca_common.quickstart.poster import PostedBulk, Poster
from monasca_common.quickstart.rows import RowWatch, count
from monasca_common.quickstart.services import PUBLISH_SECONDS, ServiceFailed, ServiceProcess
from monasca_common.quickstart.table import RunSummary, percentile

if TYPE_CHECKING:
    from monasca_common.quickstart.own_metrics import OwnMetrics

_BETWEEN_POSTS_SECONDS = 0.1
_EVENT_EVERY = 5  # bulks of metrics
_POSTING_THREADS = 4
_FIRST_ROW_SECONDS = 60.0
_FINISH_SECONDS = 60.0
_LOSE_AT = 0.25  # of the run
_KILL_AT = 0.5


@dataclass(slots=True)
class RunProgress:
    """The progress to show."""

    elapsed_seconds: float = 0.0
    posted: int = 0
    acknowledged: int = 0
    notes: list[str] = field(default_factory=list)


class Run:
    """Posts for ``seconds``. `summary` and `latencies_ms` are also valid after an error."""

    def __init__(self, broker: Broker, persister: ServiceProcess, database: Path, port: int, *, seconds: float) -> None:
        self._broker = broker
        self._persister = persister
        self._database = database
        self._seconds = seconds
        self._metrics: list[PostedBulk] = []
        self._events: list[PostedBulk] = []
        self._kills = 0
        self._progress = RunProgress()
        self._started = time.monotonic()
        self._watch = RowWatch(database)
        self._poster = Poster("127.0.0.1", port, threads=_POSTING_THREADS, acknowledged=self._acknowledged)

    def go(self, tell: Callable[[RunProgress], None]) -> None:
        """Post, and wait for the rows. ``tell`` is called about ten times a second."""
        from monasca_common.quickstart.own_metrics import OwnMetrics  # it needs an extra

        own = OwnMetrics()
        try:
            self._wait_for_a_first_row(own)
            self._post_and_wait(own, tell)
        finally:
            self._watch.stop()

    def _post_and_wait(self, own: OwnMetrics, tell: Callable[[RunProgress], None]) -> None:
        self._started = started = time.monotonic()
        self._post(own, started, tell)
        self._note("posting has ended; waiting for the last rows", tell)
        self._poster.finish(_FINISH_SECONDS)
        if self._poster.refused:
            raise ServiceFailed(f"the API refused a request: {self._poster.refused[0]}")
        deadline = time.monotonic() + _FINISH_SECONDS
        while not self._all_stored() and time.monotonic() < deadline:
            self._persister.check()
            self._tell(started, tell)
            time.sleep(_BETWEEN_POSTS_SECONDS)

    @property
    def latencies_ms(self) -> list[float]:
        """The latencies from the POST of a bulk to its last row, in order of posting, without the first one, which
        includes the start of the services."""
        return [
            (bulk.stored_at - bulk.posted_at) * 1000
            for bulk in self._metrics[1:]
            if bulk.stored_at is not None and bulk.posted_at is not None
        ]

    def _wait_for_a_first_row(self, own: OwnMetrics) -> None:
        self._post_one(own, 0)
        deadline = time.monotonic() + _FIRST_ROW_SECONDS
        while self._watch.waiting():
            self._persister.check()
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"no row was stored within {_FIRST_ROW_SECONDS:.0f} s: {self._persister.last_words()}"
                )
            time.sleep(_BETWEEN_POSTS_SECONDS)

    def _post(self, own: OwnMetrics, started: float, tell: Callable[[RunProgress], None]) -> None:
        disturbances = [(_LOSE_AT, self._lose_answers), (_KILL_AT, self._kill)]
        for number in itertools.count(1):
            elapsed = time.monotonic() - started
            if elapsed >= self._seconds and not disturbances:  # they may be late on a slow machine
                return
            if disturbances and elapsed >= disturbances[0][0] * self._seconds:
                disturbances.pop(0)[1](tell)
            self._post_one(own, number)
            self._persister.check()
            self._tell(started, tell)
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

    def _lose_answers(self, tell: Callable[[RunProgress], None]) -> None:
        if self._broker.kind == "kafka":
            self._broker.lose_answers(PUBLISH_SECONDS * 2)
            self._note("some of Kafka's acknowledgements are now lost, others delayed", tell)

    def _kill(self, tell: Callable[[RunProgress], None]) -> None:
        self._kills += 1
        killed = self._persister.kill_workers()
        self._note(f"the persister was killed ({killed} process{'es' if killed != 1 else ''}, SIGKILL)", tell)

    def _all_stored(self) -> bool:
        if self._watch.waiting():
            return False
        found = count(self._database, self._metrics, self._events)
        return found.rows >= sum(bulk.size for bulk in self._metrics + self._events)

    def summary(self) -> RunSummary:
        """Return what has been posted and stored so far."""
        bulks = self._metrics + self._events
        found = count(self._database, self._metrics, self._events)
        latencies = self.latencies_ms
        return RunSummary(
            broker=self._broker.kind,
            seconds=round(time.monotonic() - self._started, 1),
            posted=sum(bulk.size for bulk in bulks),
            acknowledged=sum(bulk.size for bulk in bulks if bulk.acknowledged_at is not None),
            rows=found.rows,
            duplicates=found.duplicates,
            lost=found.lost,
            repeated_posts=sum(bulk.attempts - 1 for bulk in bulks),
            persister_kills=self._kills,
            answers_lost=self._broker.answers_lost(),
            p50_ms=percentile(latencies, 0.5),
            p99_ms=percentile(latencies, 0.99),
        )

    def _acknowledged(self, bulk: PostedBulk) -> None:
        self._progress.acknowledged += bulk.size

    def _note(self, text: str, tell: Callable[[RunProgress], None]) -> None:
        self._progress.notes.append(text)
        tell(self._progress)

    def _tell(self, started: float, tell: Callable[[RunProgress], None]) -> None:
        self._progress.elapsed_seconds = time.monotonic() - started
        self._progress.posted = sum(bulk.size for bulk in self._metrics + self._events)
        tell(self._progress)
