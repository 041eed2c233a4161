# SPDX-License-Identifier: Apache-2.0
"""The metrics of services with workers: the counts of workers that store rows, and the statuses of all members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from monasca_common.runtime.member_health import MemberState
from monasca_common.runtime.metrics import ComputedMetrics, Sample, ServiceMetrics
from monasca_common.runtime.status_board import StatusBoard

# Fields of a member's status.
_COUNTS = {
    "dead_letters": "Messages that became dead letters",
    "restarts": "Restarts after a failure",
    "database_unavailable_seconds": "Seconds spent waiting for the database",
}
_WRITE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WorkerMetrics(ServiceMetrics):
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


class WorkersMetrics(ServiceMetrics):
    """The metrics of all workers, from the board."""

    def __init__(self, prefix: str, board: StatusBoard) -> None:
        super().__init__(prefix)
        self._board = board
        text = "1 for the current state of a worker, 0 for the others"
        self.computed_gauge("worker_state", text, "worker", "state", samples=self._states)
        text = "Messages that are not finished yet"
        self.computed_gauge("lag", text, "worker", "topic", "partition", samples=self._lags)
        for name, text in _COUNTS.items():
            self.computed_counter(name, text, "worker", samples=partial(self._counts, name))
        self.registry.register(ComputedMetrics(board.families))

    def _states(self) -> Iterator[Sample]:
        for member in self._board.members():
            for state in MemberState:
                yield (member.name, state.replace(" ", "_")), state is member.state

    def _lags(self) -> Iterator[Sample]:
        for member in self._board.members():
            for where, messages in member.lag.items():
                topic, _, partition = where.rpartition("/")
                yield (member.name, topic, partition), messages

    def _counts(self, name: str) -> Iterable[Sample]:
        return (((member.name,), getattr(member, name)) for member in self._board.members())
