# SPDX-License-Identifier: Apache-2.0
"""``/metrics`` of a job that runs, for Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.jobs.base import Progress, Watcher

_PREFIX = "monasca_pipeline"


class _Board:
    def __init__(self, job: str) -> None:
        self.registry = CollectorRegistry()
        self._offsets = self._counter("offsets", "Offsets that are accounted for").labels(job)
        self._behind = self._gauge("behind_offsets", "Offsets that are yet to be read").labels(job)
        self._seconds = self._gauge("batch_seconds", "How long the last batch took").labels(job)
        self._last = self._gauge("last_batch_time_seconds", "When the last batch ended (epoch)").labels(job)
        self._results = self._counter("results", "What the job counts", "what")
        self._job = job
        self._known = Progress(0, 0, 0.0)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("job", *labels), namespace=_PREFIX, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("job",), namespace=_PREFIX, registry=self.registry)

    def tell(self, progress: Progress) -> None:
        self._offsets.inc(progress.done - self._known.done)
        self._behind.set(progress.left)
        self._seconds.set(progress.batch_seconds)
        self._last.set(time.time())
        for what, count in progress.results.items():
            self._results.labels(self._job, what).inc(count - self._known.results.get(what, 0))
        self._known = progress


@contextlib.contextmanager
def served(job: str, host: str, port: int | None, watcher: Watcher) -> Iterator[Watcher]:
    """A watcher that passes on what it hears, and shows it at the port if there is one."""
    if port is None:
        yield watcher
        return
    board = _Board(job)
    try:
        server, thread = start_http_server(port, host, board.registry)
    except OSError as error:
        raise ConfigurationError(
            f"status_port in group [pipeline_{job}] is {port}, which cannot be opened: {error.strerror}; use another"
        ) from None

    def tell(progress: Progress) -> None:
        board.tell(progress)
        watcher.tell(progress)

    try:
        yield replace(watcher, tell=tell)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
