# SPDX-License-Identifier: Apache-2.0
"""``/metrics`` of a running job for Prometheus, and how it is for probes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from monasca_common.kafka.clock import SystemClock
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.settings import JobStatusSettings
from monasca_common.runtime.health import LoopTurn, ServiceHealth, liveness, readiness
from monasca_common.runtime.status_server import status_served

PREFIX = "monasca_pipeline"
_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_STAGE_SECONDS = (0.05, 0.1, 0.25, *_SECONDS)


class _Board:
    def __init__(self, job: str) -> None:
        self.registry = CollectorRegistry()
        self._offsets = self._counter("offsets", "Offsets that are accounted for").labels(job)
        self._behind = self._gauge("behind_offsets", "Offsets that are yet to be read").labels(job)
        self._seconds = Histogram(
            "batch_seconds",
            "How long batches took",
            ("job",),
            namespace=PREFIX,
            registry=self.registry,
            buckets=_SECONDS,
        ).labels(job)
        self._stages = Histogram(
            "stage_seconds",
            "How long the stages of batches took",
            ("job", "stage"),
            namespace=PREFIX,
            registry=self.registry,
            buckets=_STAGE_SECONDS,
        )
        self._lag = self._gauge(
            "event_time_lag_seconds", "The age of the newest record that is accounted for", "topic", "partition"
        )
        self._last = self._gauge("last_batch_time_seconds", "When the last batch ended (epoch)").labels(job)
        self._results = self._counter("results", "What the job counts", "what")
        self._job = job
        self._known = JobProgress(0, 0, 0.0)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("job", *labels), namespace=PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ("job", *labels), namespace=PREFIX, registry=self.registry)

    def tell(self, progress: JobProgress) -> None:
        self._offsets.inc(progress.done - self._known.done)
        self._behind.set(progress.left)
        if progress.done > self._known.done:  # an idle turn is no batch
            self._seconds.observe(progress.batch_seconds)
        self._last.set(time.time())
        for stage, seconds in progress.stage_seconds.items():
            self._stages.labels(self._job, stage).observe(seconds)
        for lag in progress.lags:
            self._lag.labels(self._job, lag.topic, lag.partition).set(lag.seconds)
        for what, count in progress.results.items():
            self._results.labels(self._job, what).inc(count - self._known.results.get(what, 0))
        self._known = progress


class _JobTurns:
    """The health of a job for probes."""

    def __init__(self, job: str, live_seconds: float) -> None:
        self._turn = LoopTurn(SystemClock())
        self._trouble = "no batch is done yet"
        self.health = ServiceHealth(
            f"pipeline_{job}",
            self._look,
            liveness(lambda: {job: self._turn.seconds}, live_seconds),
            readiness(lambda: [self._trouble] if self._trouble else []),
        )

    def turned(self, trouble: str) -> None:
        self._turn.turned()
        self._trouble = trouble

    def _look(self) -> tuple[bool, dict[str, Any]]:
        healthy = not self._trouble
        return healthy, {"healthy": healthy, "reason": self._trouble, "seconds_since_turn": self._turn.seconds}


@contextlib.contextmanager
def served(job: str, status: JobStatusSettings, watcher: JobWatcher, *collectors: Collector) -> Iterator[JobWatcher]:
    """A watcher that forwards progress to ``watcher``, and serves it, and how the job is, at the port if there is one,
    with what ``collectors`` of the job have."""
    if status.port is None:
        yield watcher
        return
    board, turns = _Board(job), _JobTurns(job, status.live_seconds)
    for each in collectors:
        board.registry.register(each)

    def tell(progress: JobProgress) -> None:
        board.tell(progress)
        turns.turned("")
        watcher.tell(progress)

    def turned(trouble: str) -> None:
        turns.turned(trouble)
        watcher.turned(trouble)

    with status_served(f"pipeline_{job}", status, turns.health, board.registry):
        yield replace(watcher, tell=tell, turned=turned)
