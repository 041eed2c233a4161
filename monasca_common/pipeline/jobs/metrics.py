# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of a running job for Prometheus, and its health for probes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from prometheus_client.registry import Collector

from monasca_common.kafka.clock import SystemClock
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.settings import JobStatusSettings
from monasca_common.runtime.health import LoopHealth
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.status_server import status_served

PREFIX = "monasca_pipeline"
_SECONDS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_STAGE_SECONDS = (0.05, 0.1, 0.25, *_SECONDS)


class JobMetrics(ServiceMetrics):
    """The progress of a job as metrics."""

    def __init__(self, job: str) -> None:
        super().__init__(PREFIX)
        self._job = job
        self._known = JobProgress()
        self._offsets = self.counter("offsets", "Messages in committed batches", "job").labels(job)
        self._behind = self.gauge("behind_offsets", "Messages not read yet", "job").labels(job)
        self._seconds = self.histogram("batch_seconds", "Duration of batches", "job", buckets=_SECONDS).labels(job)
        text = "Duration of the stages of batches"
        self._stages = self.histogram("stage_seconds", text, "job", "stage", buckets=_STAGE_SECONDS)
        text = "Age, by event time, of the newest message at the end of the last batch; 0 without new messages"
        self._lag = self.gauge("event_time_lag_seconds", text, "job", "topic", "partition")
        self._last = self.gauge("last_batch_time_seconds", "Time of the end of the last batch", "job").labels(job)
        self._results = self.counter("results", "Results of the job", "job", "what")

    def tell(self, progress: JobProgress) -> None:
        job = self._job
        self._offsets.inc(progress.done - self._known.done)
        self._behind.set(progress.left)
        if progress.done > self._known.done:  # a turn without records is not a batch
            self._seconds.observe(progress.batch_seconds)
        self._last.set_to_current_time()
        for stage, seconds in progress.stage_seconds.items():
            self._stages.labels(job, stage).observe(seconds)
        for lag in progress.lags:
            self._lag.labels(job, lag.topic, lag.partition).set(lag.seconds)
        for what, count in progress.results.items():
            self._results.labels(job, what).inc(count - self._known.results.get(what, 0))
        self._known = progress


@contextlib.contextmanager
def served(job: str, status: JobStatusSettings, watcher: JobWatcher, *collectors: Collector) -> Iterator[JobWatcher]:
    """Yield a watcher that forwards progress to ``watcher``. If a port is configured, serve the progress, the health of
    the job and its ``collectors`` there."""
    if status.port is None:
        yield watcher
        return
    metrics = JobMetrics(job)
    reason = "no batch is complete yet"
    health = LoopHealth(f"pipeline_{job}", SystemClock(), reason=reason, live_seconds=status.live_seconds)
    for each in collectors:
        metrics.registry.register(each)

    def tell(progress: JobProgress) -> None:
        metrics.tell(progress)
        health.turned("")
        watcher.tell(progress)

    def turned(reason: str) -> None:
        health.turned(reason)
        watcher.turned(reason)

    with status_served(f"pipeline_{job}", status, health, metrics.registry):
        yield replace(watcher, tell=tell, turned=turned)
