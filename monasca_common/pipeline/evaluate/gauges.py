# SPDX-License-Identifier: Apache-2.0
"""The gauges of the evaluation of alarms, from the database: for ``pipeline status``, and for Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from prometheus_client import Counter, Metric
from prometheus_client.registry import Collector

from monasca_common.alarms import outbox
from monasca_common.alarms.definitions import STATES
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.jobs.metrics import PREFIX
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.runtime.metrics import Sample, gauge_family
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.tables import alarm


@dataclass(frozen=True, slots=True)
class EvaluationGauges:
    """``evaluated_to_ms``: up to when alarms are evaluated; ``watermarks_ms``: up to when the measurements of each
    partition are known. ``alarms``: how many are in each state. ``unpublished``: transitions in the outbox."""

    evaluated_to_ms: int
    watermarks_ms: Mapping[int, int]
    alarms: Mapping[str, int]
    unpublished: int


def read_gauges(connection: sa.Connection, job: str) -> EvaluationGauges | None:
    """Return the gauges; None before the first batch."""
    stored = watermark.load(connection, job)
    if stored is None:
        return None
    counted = sa.select(alarm.c.state, sa.func.count()).group_by(alarm.c.state)
    alarms = dict.fromkeys(STATES, 0) | {row.state: row[1] for row in connection.execute(counted).all()}
    return EvaluationGauges(
        stored.evaluated_to_ms, stored.watermarks_ms, alarms, outbox.count(connection, outbox.TRANSITION)
    )


LOG = logging.getLogger(__name__)

EVALUATE = "evaluate"
KNOWN_SECONDS = 15.0
"""Counting reads an index of all alarms, so it is done this often at most, however often metrics are read."""
_SESSION = Bounds(statement_seconds=5.0, lock_seconds=2.0, idle_seconds=5.0)


class GaugesCollector(Collector):
    """The gauges as metrics of Prometheus. Ages are computed when metrics are read, so they grow while the job hangs.
    Without a database there are no metrics."""

    def __init__(self, connection: str, job: str, clock: Clock | None = None) -> None:
        self._offset_store = OffsetStore(connection, _SESSION)
        self._job = job
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: EvaluationGauges | None = None
        self._known_until = float("-inf")

    def collect(self) -> Iterable[Metric]:
        try:
            found = self._gauges()
        except StorageUnavailable as error:
            LOG.warning("no metrics of the evaluation: %s", error)
            return
        if found is not None:
            yield from _metrics(found, self._clock.time_ms())

    def _gauges(self) -> EvaluationGauges | None:
        with self._lock:
            if self._clock.monotonic() >= self._known_until:
                with self._offset_store.reading() as connection:
                    self._known = read_gauges(connection, self._job)
                self._known_until = self._clock.monotonic() + KNOWN_SECONDS
            return self._known


def lost_transitions() -> Counter:
    """Return a counter that is served from 0, because an alert needs its first increase."""
    lost = Counter(
        "lost_transitions",
        "Transitions that were removed from the outbox because the topic does not accept their size",
        ("job",),
        namespace=PREFIX,
        registry=None,
    )
    lost.labels(EVALUATE)
    return lost


def _metrics(found: EvaluationGauges, now_ms: int) -> Iterable[Metric]:
    def age(time_ms: int) -> float:
        return max(0.0, (now_ms - time_ms) / 1000)

    text = "The age of the time up to which alarms are evaluated"
    yield _gauge("evaluation_delay_seconds", text, [((), age(found.evaluated_to_ms))])
    text = "The age of the time up to which measurements of the partition are known"
    ages = [((str(partition),), age(time_ms)) for partition, time_ms in found.watermarks_ms.items()]
    yield _gauge("horizon_age_seconds", text, ages, "partition")
    yield _gauge("unpublished_transitions", "Transitions that wait in the outbox", [((), found.unpublished)])
    states = [((state,), count) for state, count in found.alarms.items()]
    yield _gauge("alarms", "Alarms in each state", states, "state")


def _gauge(name: str, text: str, samples: Iterable[Sample], *labels: str) -> Metric:
    of_job = (((EVALUATE, *values), value) for values, value in samples)
    return gauge_family(f"{PREFIX}_{name}", text, ("job", *labels), of_job)
