# SPDX-License-Identifier: Apache-2.0
"""What the last survey of lag has found, for Prometheus: of each group, and of the worst partitions."""

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
Figure = Callable[[LagVerdict], float | None]
# Name, text, and value; ``None``: there is none to show.
_FIGURES: tuple[tuple[str, str, Figure], ...] = (
    ("messages", "Unread messages", lambda lag: lag.messages),
    ("seconds", "The age of the oldest unread message", lambda lag: lag.seconds),
    ("deleted_messages", "Messages that retention removed unread", lambda lag: lag.deleted),
    (
        "hidden_messages",
        "Offsets after a transaction that stays open, which no reader of committed messages gets",
        lambda lag: lag.hidden,
    ),
    ("truncated_messages", "Offsets that were committed and are no longer in the log", lambda lag: lag.truncated),
    (
        "headroom_seconds",
        "How long until retention removes the oldest unread message",
        lambda lag: lag.headroom_seconds,
    ),
    (
        "lost_in_seconds",
        "How long until retention removes an unread message at the speed at which the group reads",
        lambda lag: lag.lost_in_seconds,
    ),
    (
        "expires_soon",
        "1 where little of the time is left in which unread messages are kept",
        lambda lag: lag.expires_soon,
    ),
    ("completeness", "How much of the window is known, 0 to 1", lambda lag: lag.completeness),
)
_PARTITION = ("group", "topic", "partition")


class LagMetrics(ServiceMetrics):
    """``max_partitions``: how many have metrics of their own. The metrics of groups count all partitions."""

    def __init__(self, max_partitions: int) -> None:
        super().__init__(_PREFIX)
        self._max_partitions = max_partitions
        self._groups: dict[str, LagVerdict] = {}
        self._partitions: list[tuple[str, TopicPartition, LagVerdict]] = []
        outcomes = ("complete", "failed")
        self._surveys = self.counter("surveys", "Surveys of all groups, by outcome", "outcome", known=outcomes)
        self._seconds = self.histogram("survey_seconds", "How long complete surveys took", buckets=_SECONDS)
        self._last = self.gauge("last_survey_timestamp_seconds", "When the last complete survey was")
        self._left_out = self.gauge("left_out_partitions", "Partitions without metrics of their own")
        for name, text, value in _FIGURES:
            self.computed_gauge(name, text, *_PARTITION, samples=partial(self._partition_figures, value))
            self.computed_gauge(f"group_{name}", text, "group", samples=partial(self._group_figures, value))
        numbers = ", ".join(f"{number} {status.name}" for number, status in enumerate(LagStatus))
        rank = lambda lag: _ORDER.index(lag.status)  # noqa: E731
        self.computed_gauge(
            "status", f"The verdict: {numbers}", *_PARTITION, samples=partial(self._partition_figures, rank)
        )
        text = "1 for the status of the group's worst partition"
        self.computed_gauge("group_status", text, "group", "status", samples=self._group_statuses)

    def completed(self, history: LagHistory, seconds: float) -> None:
        self._groups = {
            group: group_lag(known.lag for known in partitions.values()) for group, partitions in history.groups.items()
        }
        self._partitions = _worst(history, self._max_partitions)
        self._surveys.labels("complete").inc()
        self._seconds.observe(seconds)
        self._last.set((history.surveyed_ms or 0) / 1000)
        self._left_out.set(max(0, sum(map(len, history.groups.values())) - self._max_partitions))

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


def _worst(history: LagHistory, most: int) -> list[tuple[str, TopicPartition, LagVerdict]]:
    found = [
        (group, partition, known.lag)
        for group, partitions in history.groups.items()
        for partition, known in partitions.items()
    ]
    if len(found) > most:
        found.sort(key=lambda each: (_ORDER.index(each[2].status), each[2].messages), reverse=True)
    return found[:most]
