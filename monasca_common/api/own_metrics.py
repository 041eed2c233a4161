# SPDX-License-Identifier: Apache-2.0
"""The API's ``/metrics`` for Prometheus, for one process or for all workers.

Workers share the folder ``PROMETHEUS_MULTIPROC_DIR``; set it before prometheus_client is imported.
"""

from __future__ import annotations

import glob
import os
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import falcon
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PROMETHEUS_TEXT

from monasca_common.api.access import Served
from monasca_common.api.limits import OTLP_LOGS, OTLP_METRICS, REMOTE_WRITE
from monasca_common.api.log_fields import NO_MESSAGES, MessageCounts, Reason
from monasca_common.kafka import ProducerPool
from monasca_common.runtime.metrics import ComputedMetrics

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "monasca_api"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_KINDS = {
    "/v2.0/metrics": "metrics",
    "/v2.0/logs": "logs",
    "/v1.0/events": "events",
    OTLP_METRICS: "metrics",
    OTLP_LOGS: "logs",
    REMOTE_WRITE: "metrics",
}
# Reasons used by alerts.
_FAULTS_OF_SERVER = (Reason.BUSY, Reason.KAFKA, Reason.DATABASE, Reason.KEYSTONE, Reason.REGISTRY)


class ApiMetrics:
    """The metrics of one worker. Not thread-safe, except `validated`."""

    def __init__(self, producers: ProducerPool) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._producers = producers
        self.before_read: Callable[[], object] = lambda: None
        self._registry = CollectorRegistry()
        named: dict[str, Any] = {"namespace": _PREFIX, "registry": self._registry}
        self._requests = Counter("requests", "Completed requests", ("method", "route", "status"), **named)
        self._seconds = Histogram(
            "request_seconds", "Time from a request to its response", ("method", "route"), buckets=_SECONDS, **named
        )
        self._messages = Counter("messages", "Messages of posts, by outcome", ("kind", "outcome"), **named)
        self._refused = Counter("refused", "Refused requests, by reason", ("reason",), **named)
        self._validations = Histogram(
            "token_validation_seconds", "Keystone's time to validate a token", ("outcome",), buckets=_SECONDS, **named
        )
        self._seconds_of = cache(self._seconds.labels)
        self._in_flight = Gauge("requests_in_flight", "Requests in flight", multiprocess_mode="livesum", **named)
        text = "Messages that Kafka has not acknowledged"
        self._unacknowledged = Gauge("unacknowledged_messages", text, ("topic",), multiprocess_mode="livesum", **named)
        text = "Age of the oldest unacknowledged message"
        self._oldest = Gauge("oldest_unacknowledged_seconds", text, ("topic",), multiprocess_mode="livemax", **named)
        # The counters used by alerts start at 0, because Prometheus cannot detect an increase in a new series.
        for reason in _FAULTS_OF_SERVER:
            self._refused.labels(reason)
        for kind in _KINDS.values():
            for outcome in MessageCounts._fields:
                self._messages.labels(kind, outcome)

    def will_validate(self, outcomes: Iterable[str]) -> None:
        """Also start the counters of these validation outcomes at 0."""
        for outcome in outcomes:
            self._validations.labels(outcome)

    def count(self, served: Sequence[Served], in_flight: int) -> bool:
        """Count completed requests, and return whether requests or messages are still in flight."""
        numbers: Tally[tuple[str, str, int, str]] = Tally()
        messages: dict[str, list[MessageCounts]] = defaultdict(list)
        for request in served:
            numbers[request.method, request.route, request.status, request.reason] += 1
            self._seconds_of(request.method, request.route).observe(request.seconds)
            if request.counts is not NO_MESSAGES:
                messages[request.route].append(request.counts)
        for (method, route, status, reason), number in numbers.items():
            self._requests.labels(method, route, status).inc(number)
            if reason:
                self._refused.labels(reason).inc(number)
        for route, counts in messages.items():
            for outcome, of_outcome in zip(MessageCounts._fields, zip(*counts, strict=True), strict=True):
                self._messages.labels(_KINDS.get(route, "other"), outcome).inc(sum(of_outcome))
        self._in_flight.set(in_flight)
        unacknowledged = 0
        for opened in self._producers.opened():
            health = opened.producer.health()
            self._unacknowledged.labels(opened.topic).set(health.outstanding_messages)
            self._oldest.labels(opened.topic).set(health.oldest_unacknowledged_seconds)
            unacknowledged += health.outstanding_messages
        return bool(in_flight or unacknowledged)

    def validated(self, outcome: str, seconds: float) -> None:
        """Record the outcome and duration of Keystone's validation of a token."""
        self._validations.labels(outcome).observe(seconds)

    def text(self) -> bytes:
        """Return the metrics; the metrics of other workers are at most half a second old."""
        self.before_read()
        return generate_latest(self._registry if os.environ.get(_FOLDER) is None else workers_registry())


def workers_registry() -> CollectorRegistry:
    """Return the metrics of all workers, at most half a second old. Requires ``PROMETHEUS_MULTIPROC_DIR``."""
    registry = CollectorRegistry()
    registry.register(ComputedMetrics(_workers_families))
    return registry


def _workers_families() -> Iterator[Metric]:
    folder = os.environ[_FOLDER]
    # The gauges of dead workers are removed; their counters are kept.
    for path in glob.glob(os.path.join(folder, "gauge_live*.db")):
        pid = int(path.rpartition("_")[2].removesuffix(".db"))
        if not os.path.exists(f"/proc/{pid}"):
            multiprocess.mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
    yield from multiprocess.MultiProcessCollector(None, folder).collect()  # type: ignore[no-untyped-call]


class MetricsPage:
    """``GET /metrics``."""

    def __init__(self, metrics: ApiMetrics) -> None:
        self._metrics = metrics

    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        response.content_type = PROMETHEUS_TEXT
        response.data = self._metrics.text()
