# SPDX-License-Identifier: Apache-2.0
"""``/metrics`` of a running job, for Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.registry import Collector

from monasca_common.kafka.config import check_listener
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher

_PREFIX = "monasca_pipeline"
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
            namespace=_PREFIX,
            registry=self.registry,
            buckets=_SECONDS,
        ).labels(job)
        self._stages = Histogram(
            "stage_seconds",
            "How long the stages of batches took",
            ("job", "stage"),
            namespace=_PREFIX,
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
        return Counter(name, text, ("job", *labels), namespace=_PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ("job", *labels), namespace=_PREFIX, registry=self.registry)

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


@contextlib.contextmanager
def served(job: str, host: str, port: int | None, watcher: JobWatcher, *collectors: Collector) -> Iterator[JobWatcher]:
    """A watcher that forwards progress to ``watcher``, and serves it at the port if there is one, with what
    ``collectors`` of the job have."""
    if port is None:
        yield watcher
        return
    board = _Board(job)
    for each in collectors:
        board.registry.register(each)
    check_listener(f"pipeline_{job}", host, port, prefix="status_")
    server, thread = start_http_server(port, host, board.registry)

    def tell(progress: JobProgress) -> None:
        board.tell(progress)
        watcher.tell(progress)

    try:
        yield replace(watcher, tell=tell)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
