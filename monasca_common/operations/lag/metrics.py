# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of the last lag survey: all groups, and the worst partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.history import LagHistory
from monasca_common.operations.lag.verdict import LagStatus, LagVerdict, group_lag
from monasca_common.runtime.metrics import Sample, ServiceMetrics

_PREFIX = "monasca_lag"
_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_ORDER = list(LagStatus)
_MAX_PARTITIONS = 10_000  # partitions with their own metrics; Prometheus stores ten series for each
Figure = Callable[[LagVerdict], float | None]
# Name, help and value; a value of ``None`` produces no sample.
_FIGURES: tuple[tuple[str, str, Figure], ...] = (
    ("messages", "Unread messages", lambda lag: lag.messages),
    ("seconds", "Age of the oldest unread message", lambda lag: lag.seconds),
    ("deleted_messages", "Messages that retention deleted unread", lambda lag: lag.deleted),
    (
        "hidden_messages",
        "Offsets hidden from readers of committed messages by an open transaction",
        lambda lag: lag.hidden,
    ),
    ("truncated_messages", "Committed offsets after the end of the log", lambda lag: lag.truncated),
    (
        "headroom_seconds",
        "Time until retention deletes the oldest unread message",
        lambda lag: lag.headroom_seconds,
    ),
    (
        "lost_in_seconds",
        "Time until retention deletes an unread message at the group's speed",
        lambda lag: lag.lost_in_seconds,
    ),
    (
        "expires_soon",
        "1 if at most least_headroom of the retention of the oldest unread message is left",
        lambda lag: lag.expires_soon,
    ),
    ("completeness", "Known fraction of the window, from 0 to 1", lambda lag: lag.completeness),
)
_PARTITION = ("group", "topic", "partition")


class LagMetrics(ServiceMetrics):
    """The worst partitions have their own metrics. Metrics of groups count all partitions."""

    def __init__(self) -> None:
        super().__init__(_PREFIX)
        self._groups: dict[str, LagVerdict] = {}
        self._partitions: list[tuple[str, TopicPartition, LagVerdict]] = []
        outcomes = ("complete", "failed")
        self._surveys = self.counter("surveys", "Surveys of all groups, by outcome", "outcome", known=outcomes)
        self._seconds = self.histogram("survey_seconds", "Duration of complete surveys", buckets=_SECONDS)
        self._last = self.gauge("last_survey_timestamp_seconds", "Time of the last complete survey")
        self._left_out = self.gauge("left_out_partitions", "Partitions without their own metrics")
        for name, text, value in _FIGURES:
            self.computed_gauge(name, text, *_PARTITION, samples=partial(self._partition_figures, value))
            self.computed_gauge(f"group_{name}", text, "group", samples=partial(self._group_figures, value))
        numbers = ", ".join(f"{number} {status.name}" for number, status in enumerate(LagStatus))
        rank = lambda lag: _ORDER.index(lag.status)  # noqa: E731
        self.computed_gauge(
            "status", f"Status as a number: {numbers}", *_PARTITION, samples=partial(self._partition_figures, rank)
        )
        text = "1 for the status of the group's worst partition, 0 for the others"
        self.computed_gauge("group_status", text, "group", "status", samples=self._group_statuses)

    def completed(self, history: LagHistory, seconds: float) -> None:
        self._groups = {
            group: group_lag(known.lag for known in partitions.values()) for group, partitions in history.groups.items()
        }
        self._partitions = _worst(history)
        self._surveys.labels("complete").inc()
        self._seconds.observe(seconds)
        self._last.set((history.surveyed_ms or 0) / 1000)
        self._left_out.set(max(0, sum(map(len, history.groups.values())) - _MAX_PARTITIONS))

    def failed(self) -> None:
        self._surveys.labels("failed").inc()

    def _partition_figures(self, value: Figure) -> Iterator[Sample]:
        for group, partition, lag in self._partitions:
            yield (group, partition.topic, str(partition.partition)), value(lag)

    def _group_figures(self, value: Figure) -> Iterator[Sample]:
        for group, lag in self._groups.items():
            yield (group,), value(lag)

    def _group_statuses(self) -> Iterator[Sample]:
        for group, lag in self._groups.items():
            for status in LagStatus:
                yield (group, status.name), lag.status is status


def _worst(history: LagHistory) -> list[tuple[str, TopicPartition, LagVerdict]]:
    found = [
        (group, partition, known.lag)
        for group, partitions in history.groups.items()
        for partition, known in partitions.items()
    ]
    if len(found) > _MAX_PARTITIONS:
        found.sort(key=lambda each: (_ORDER.index(each[2].status), each[2].messages), reverse=True)
    return found[:_MAX_PARTITIONS]
