# SPDX-License-Identifier: Apache-2.0
"""Reads the gauges of alarm evaluation from the database, for ``pipeline status`` and Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from prometheus_client import Counter

from monasca_common.alarms import outbox
from monasca_common.alarms.definitions import STATES
from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.jobs.metrics import PREFIX
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.runtime.metrics import Sample, ServiceMetrics
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.sql.tables import alarm


@dataclass(frozen=True, slots=True)
class EvaluationGauges:
    """``evaluated_to_ms``: the time up to which alarms are evaluated. ``watermarks_ms``: the time up to which the
    measurements of each partition are known. ``alarms``: the number of alarms in each state. ``unpublished``: the
    number of transitions in the outbox."""

    evaluated_to_ms: int
    watermarks_ms: Mapping[int, int]
    alarms: Mapping[str, int]
    unpublished: int


def read_gauges(connection: sa.Connection, job: str) -> EvaluationGauges | None:
    """Return the gauges, or ``None`` before the first batch."""
    stored = watermark.load(connection, job)
    if stored is None:
        return None
    counted = sa.select(alarm.c.state, sa.func.count()).group_by(alarm.c.state)
    alarms = dict.fromkeys(STATES, 0) | {row.state: row[1] for row in connection.execute(counted).all()}
    return EvaluationGauges(stored.evaluated_to_ms, stored.watermarks_ms, alarms, outbox.count(connection))


LOG = logging.getLogger(__name__)

EVALUATE = "evaluate"
KNOWN_SECONDS = 15.0
"""The minimum time between two counts of alarms, because each count reads a whole index."""
_SESSION = Bounds(statement_seconds=5.0, lock_seconds=2.0, idle_seconds=5.0)


class EvaluationMetrics(ServiceMetrics):
    """Exposes the gauges as Prometheus metrics. Ages are computed when metrics are read, so they grow while the job
    hangs. While the database is unavailable, there are no metrics."""

    def __init__(self, connection: str, job: str, clock: Clock | None = None) -> None:
        super().__init__(PREFIX)
        self._offset_store = OffsetStore(connection, _SESSION)
        self._name = job
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: EvaluationGauges | None = None
        self._known_until = float("-inf")
        text = "Time since the point up to which alarms are evaluated"
        self._stored_gauge("evaluation_delay_seconds", text, lambda found: [((), self._age(found.evaluated_to_ms))])
        text = "Age of the partition's watermark; the oldest watermark delays evaluation"
        self._stored_gauge("horizon_age_seconds", text, self._watermark_ages, "partition")
        text = "Transitions in the outbox"
        self._stored_gauge("unpublished_transitions", text, lambda found: [((), found.unpublished)])
        self._stored_gauge(
            "alarms", "Alarms of all tenants in each state", lambda found: _by_label(found.alarms), "state"
        )

    def _stored_gauge(
        self, name: str, text: str, samples: Callable[[EvaluationGauges], Iterable[Sample]], *labels: str
    ) -> None:
        def of_job() -> Iterator[Sample]:
            found = self._gauges()
            for values, value in () if found is None else samples(found):
                yield (EVALUATE, *values), value

        self.computed_gauge(name, text, "job", *labels, samples=of_job)

    def _watermark_ages(self, found: EvaluationGauges) -> list[Sample]:
        return _by_label({partition: self._age(time_ms) for partition, time_ms in found.watermarks_ms.items()})

    def _age(self, time_ms: int) -> float:
        return max(0.0, (self._clock.time_ms() - time_ms) / 1000)

    def _gauges(self) -> EvaluationGauges | None:
        with self._lock:
            if self._clock.monotonic() >= self._known_until:
                try:
                    with self._offset_store.reading() as connection:
                        self._known = read_gauges(connection, self._name)
                except StorageUnavailable as error:
                    LOG.warning("metrics of the evaluation are unavailable: %s", error)
                    self._known = None
                self._known_until = self._clock.monotonic() + KNOWN_SECONDS
            return self._known


def _by_label(values: Mapping[Any, float]) -> list[Sample]:
    return [((str(label),), value) for label, value in values.items()]


def lost_transitions() -> Counter:
    """Return a counter that starts at 0, so that an alert detects its first increase."""
    text = "Transitions that were too large for their topic and were not published"
    return ServiceMetrics(PREFIX).counter("lost_transitions", text, "job", known=(EVALUATE,))
