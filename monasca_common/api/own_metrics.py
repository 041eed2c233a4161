# SPDX-License-Identifier: Apache-2.0
"""``/metrics`` of the API for Prometheus: of one process, or of all workers.

Workers share the folder that ``PROMETHEUS_MULTIPROC_DIR`` names, which is to be set before prometheus_client is
imported.
"""

from __future__ import annotations

import glob
import hmac
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
from monasca_common.api.log_fields import NO_MESSAGES, MessageCounts, Reason
from monasca_common.api.problems import Problem
from monasca_common.kafka import ProducerPool
from monasca_common.runtime.metrics import ComputedMetrics

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "monasca_api"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_KINDS = {"/v2.0/metrics": "metrics", "/v2.0/logs": "logs", "/v1.0/events": "events"}
# Refusals that an alert looks at.
_NO_SENDERS_FAULT = (Reason.BUSY, Reason.KAFKA, Reason.DATABASE, Reason.KEYSTONE)


class ApiMetrics:
    """What one worker counts. Called by one thread at a time, but for `validated`."""

    def __init__(self, producers: ProducerPool) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._producers = producers
        self.before_read: Callable[[], object] = lambda: None
        self._registry = CollectorRegistry()
        made: dict[str, Any] = {"namespace": _PREFIX, "registry": self._registry}
        self._requests = Counter("requests", "Requests that were answered", ("method", "route", "status"), **made)
        self._seconds = Histogram(
            "request_seconds", "From a request to its answer", ("method", "route"), buckets=_SECONDS, **made
        )
        self._messages = Counter("messages", "Messages of posts by what became of them", ("kind", "outcome"), **made)
        self._refused = Counter("refused", "Requests that were refused, by reason", ("reason",), **made)
        self._validations = Histogram(
            "token_validation_seconds", "How long Keystone was waited for", ("outcome",), buckets=_SECONDS, **made
        )
        self._seconds_of = cache(self._seconds.labels)
        self._in_flight = Gauge("requests_in_flight", "Requests in flight", multiprocess_mode="livesum", **made)
        self._unacknowledged = Gauge(
            "unacknowledged_messages",
            "Messages that Kafka has yet to answer",
            ("topic",),
            multiprocess_mode="livesum",
            **made,
        )
        self._oldest = Gauge(
            "oldest_unacknowledged_seconds",
            "The age of the oldest of them",
            ("topic",),
            multiprocess_mode="livemax",
            **made,
        )
        self._begin()

    def _begin(self) -> None:
        """Serve counters that alerts need from 0: Prometheus sees no increase in a series that is new."""
        for reason in _NO_SENDERS_FAULT:
            self._refused.labels(reason)
        for kind in _KINDS.values():
            for outcome in MessageCounts._fields:
                self._messages.labels(kind, outcome)

    def will_validate(self, outcomes: Iterable[str]) -> None:
        """Serve these outcomes of tokens from 0 as well."""
        for outcome in outcomes:
            self._validations.labels(outcome)

    def count(self, served: Sequence[Served], in_flight: int) -> bool:
        """Whether something goes on that is to be looked at again soon."""
        alike: Tally[tuple[str, str, int, str]] = Tally()
        messages: dict[str, list[MessageCounts]] = defaultdict(list)
        for each in served:
            alike[each.method, each.route, each.status, each.reason] += 1
            self._seconds_of(each.method, each.route).observe(each.seconds)
            if each.counts is not NO_MESSAGES:
                messages[each.route].append(each.counts)
        for (method, route, status, reason), number in alike.items():
            self._requests.labels(method, route, status).inc(number)
            if reason:
                self._refused.labels(reason).inc(number)
        for route, counts in messages.items():
            for outcome, numbers in zip(MessageCounts._fields, zip(*counts, strict=True), strict=True):
                self._messages.labels(_KINDS.get(route, "other"), outcome).inc(sum(numbers))
        self._in_flight.set(in_flight)
        unacknowledged = 0
        for opened in self._producers.opened():
            health = opened.producer.health()
            self._unacknowledged.labels(opened.topic).set(health.outstanding_messages)
            self._oldest.labels(opened.topic).set(health.oldest_unacknowledged_seconds)
            unacknowledged += health.outstanding_messages
        return bool(in_flight or unacknowledged)

    def validated(self, outcome: str, seconds: float) -> None:
        """Note a token for which Keystone was asked."""
        self._validations.labels(outcome).observe(seconds)

    def text(self) -> bytes:
        """Up to now for this worker; others count what they served within half a second."""
        self.before_read()
        return generate_latest(self._registry if os.environ.get(_FOLDER) is None else workers_registry())


def workers_registry() -> CollectorRegistry:
    """What all workers count, within half a second; in any process that has the environment of theirs."""
    registry = CollectorRegistry()
    registry.register(ComputedMetrics(_workers_families))
    return registry


def _workers_families() -> Iterator[Metric]:
    folder = os.environ[_FOLDER]
    _forget_dead_workers(folder)
    yield from multiprocess.MultiProcessCollector(None, folder).collect()  # type: ignore[no-untyped-call]


class MetricsPage:
    """``GET /metrics``. ``token``: what it has to bring as ``Authorization: Bearer``; ``None``: nothing."""

    def __init__(self, metrics: ApiMetrics, token: str | None) -> None:
        self._metrics = metrics
        self._expected = None if token is None else f"Bearer {token}".encode()

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        given = request.env.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            raise Problem(
                401,
                "Unauthorized",
                "these metrics need the token of [api] metrics_token: send it as Authorization: Bearer",
                headers={"WWW-Authenticate": "Bearer"},
            )
        response.content_type = PROMETHEUS_TEXT
        response.data = self._metrics.text()


def _forget_dead_workers(folder: str) -> None:
    """What they counted stays; what they had at a time does not."""
    for path in glob.glob(os.path.join(folder, "gauge_live*.db")):
        pid = int(path.rpartition("_")[2].removesuffix(".db"))
        if not os.path.exists(f"/proc/{pid}"):
            multiprocess.mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
