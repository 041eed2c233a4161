# SPDX-License-Identifier: Apache-2.0
"""``/healthcheck`` for probes, as JSON, and ``/metrics`` for Prometheus: the statuses on the board."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import Any

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from monasca_common.kafka.clock import SystemClock
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.persister.status import WRITE_SECONDS, MemberState, Status
from monasca_common.persister.status_board import StatusBoard
from monasca_common.runtime.health import ServiceHealth, liveness, readiness
from monasca_common.runtime.metrics import ServiceMetrics, counter_family, gauge_family
from monasca_common.runtime.status_server import StatusServer

_PREFIX = "monasca_persister"
_OUTCOMES = ("stored", "repeated", "conflicting", "skipped")
_COUNTERS: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("dead_letters", "Messages that are not rows", lambda status: status.dead_letters),
    ("database_unavailable_seconds", "Waited for the database", lambda status: status.unavailable_seconds),
    ("restarts", "Restarts after a failure", lambda status: status.restarts),
)
# After so long without partitions, a worker is one of more than there are partitions.
_ASSIGNED_SECONDS = 60
_STALL_SECONDS = round(LagWindow().seconds)


def status_server(listener: socket.socket, board: StatusBoard) -> StatusServer:
    """On a socket that is bound and listening already."""
    clock = SystemClock()
    made = ServiceMetrics(_PREFIX)
    made.computed(lambda: metrics(board.statuses()))

    def look() -> tuple[bool, dict[str, Any]]:
        statuses = board.statuses()
        return healthy(statuses), health(statuses)

    checks = ServiceHealth(
        "persister",
        look,
        liveness(lambda: turn_ages(board.statuses(), clock.time_ms())),
        readiness(lambda: unready_reasons(board.statuses(), clock.time_ms())),
    )
    return StatusServer(listener, checks, made.registry)


def healthy(statuses: Sequence[Status]) -> bool:
    return all(status.state is MemberState.RUNNING for status in statuses)


def health(statuses: Sequence[Status]) -> dict[str, Any]:
    """The body of ``/healthcheck``, whose status is 503 unless every worker is running."""
    return {
        "healthy": healthy(statuses),
        "workers": {
            status.worker: {
                "state": status.state,
                "reason": status.reason,
                "seconds_in_state": _seconds_before(status, status.since_ms),
                "lag": sum(status.lag.values()),
                "partitions": len(status.lag),
                "seconds_since_write": _seconds_before(status, status.written_ms),
                "pid": status.pid,
                "restarts": status.restarts,
            }
            for status in statuses
        },
    }


def turn_ages(statuses: Sequence[Status], now_ms: int) -> dict[str, float | None]:
    """How many seconds ago the loop of each worker has turned. One that has no loop now, because it waits for its next
    start, at least tells of itself; a process that died is replaced, and needs no restart of the service."""
    return {
        status.worker: max(0, now_ms - (status.turned_ms or status.told_ms)) / 1000 if status.pid else None
        for status in statuses
    }


def unready_reasons(statuses: Sequence[Status], now_ms: int) -> Iterator[str]:
    """Each worker runs, has partitions, unless others have them all, and gets on with what is there."""
    for status in statuses:
        if status.state is not MemberState.RUNNING:
            yield f"{status.worker}: {status.state}{': ' if status.reason else ''}{status.reason}"
        elif not status.partitions and now_ms - status.since_ms < _ASSIGNED_SECONDS * 1000:
            yield f"{status.worker}: it has no partitions yet"
        elif any(status.lag.values()) and now_ms - status.moved_ms > _STALL_SECONDS * 1000:
            seconds, waiting = (now_ms - status.moved_ms) // 1000, sum(status.lag.values())
            yield f"{status.worker}: STALL: {waiting} messages wait, and none is stored for {seconds} s"


def _seconds_before(status: Status, moment_ms: int | None) -> float | None:
    return max(0, status.told_ms - moment_ms) / 1000 if moment_ms else None


def metrics(statuses: Sequence[Status]) -> Iterator[Metric]:
    """The metrics of ``/metrics``. The counters of a restarted worker continue."""
    states = (
        ((each.worker, state.replace(" ", "_")), state is each.state) for each in statuses for state in MemberState
    )
    yield gauge_family(f"{_PREFIX}_worker_state", "1 for the state that a worker is in", ("worker", "state"), states)
    lags = (
        ((each.worker, *where.rpartition("/")[::2]), behind) for each in statuses for where, behind in each.lag.items()
    )
    yield gauge_family(f"{_PREFIX}_lag", "Messages that are not stored yet", ("worker", "topic", "partition"), lags)
    rows = (((each.worker, outcome), getattr(each, outcome)) for each in statuses for outcome in _OUTCOMES)
    yield counter_family(f"{_PREFIX}_rows", "Rows by what became of them", ("worker", "outcome"), rows)
    for name, text, value in _COUNTERS:
        samples = (((each.worker,), value(each)) for each in statuses)
        yield counter_family(f"{_PREFIX}_{name}", text, ("worker",), samples)
    writes = HistogramMetricFamily(f"{_PREFIX}_write_seconds", "Transactions", labels=["worker"])
    for each in statuses:
        bounds = map(floatToGoString, (*WRITE_SECONDS, inf))
        buckets = list(zip(bounds, accumulate(each.write_classes), strict=True))
        writes.add_metric([each.worker], buckets, each.write_seconds)
    yield writes
    last = (((each.worker,), each.written_ms / 1000 if each.written_ms else None) for each in statuses)
    yield gauge_family(f"{_PREFIX}_last_write_timestamp_seconds", "The last transaction", ("worker",), last)
