# SPDX-License-Identifier: Apache-2.0
"""The metrics of processes that store rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monasca_common.runtime.metrics import ServiceMetrics

_WRITE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WriteMetrics(ServiceMetrics):
    """The counts of one process. ``members``: the names of members, whose series exist from the start. ``outcomes``:
    the names of the row outcomes that `wrote` counts."""

    def __init__(self, prefix: str, members: Iterable[str], outcomes: Sequence[str]) -> None:
        super().__init__(prefix)
        self._outcomes = tuple(outcomes)
        self._rows = self.counter("rows", "Rows by outcome", "worker", "outcome")
        self._seconds = self.histogram("write_seconds", "Duration of transactions", "worker", buckets=_WRITE_SECONDS)
        self._last = self.gauge("last_write_timestamp_seconds", "Time of the last transaction", "worker")
        for member in members:
            self._seconds.labels(member)
            for outcome in self._outcomes:
                self._rows.labels(member, outcome)

    def wrote(self, worker: str, written: object, seconds: float) -> None:
        for outcome in self._outcomes:
            self._rows.labels(worker, outcome).inc(getattr(written, outcome))
        self._seconds.labels(worker).observe(seconds)
        self._last.labels(worker).set_to_current_time()
