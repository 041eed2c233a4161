# SPDX-License-Identifier: Apache-2.0
"""The metrics of services with workers: the statuses of all members."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from monasca_common.runtime.member_health import MemberState
from monasca_common.runtime.metrics import ComputedMetrics, Sample, ServiceMetrics
from monasca_common.runtime.status_board import StatusBoard

# Fields of a member's status.
_COUNTS = {
    "dead_letters": "Messages that became dead letters",
    "restarts": "Restarts after a failure",
    "database_unavailable_seconds": "Seconds spent waiting for the database",
}


class WorkersMetrics(ServiceMetrics):
    """The metrics of all workers, from the board."""

    def __init__(self, prefix: str, board: StatusBoard) -> None:
        super().__init__(prefix)
        self._board = board
        text = "1 for the current state of a worker, 0 for the others"
        self.computed_gauge("worker_state", text, "worker", "state", samples=self._states)
        text = "Messages that are not finished yet"
        self.computed_gauge("lag", text, "worker", "topic", "partition", samples=self._lags)
        self.registry.register(ComputedMetrics(self._counts))
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

    def _counts(self) -> Iterator[Metric]:
        for name, text in _COUNTS.items():
            family = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=("worker",))
            for member in self._board.members():
                family.add_metric((member.name,), getattr(member, name))
            yield family
