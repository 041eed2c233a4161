# SPDX-License-Identifier: Apache-2.0
"""Tracks the watermark of each partition (the time up to which its measurements are known) and the evaluator's row in
the database. A producer can choose the timestamps that Kafka stores, so no timestamp moves a watermark beyond the time
of the scan.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from monasca_common.alarms.evaluation import IdlePeriod
from monasca_common.kafka.clock import Clock
from monasca_common.pipeline.errors import EvaluatorFenced
from monasca_common.pipeline.spark.counts import Adder, Greatest, Union, accumulator
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql.tables import alarm_evaluator

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
LONGEST_SILENCE_MS = 60_000
"""A source that had neither a scan nor an arrival for longer than this was idle."""
LONGEST_STEP_MS = 60_000
"""A larger difference between the wall clock and the monotonic clock is a step."""
ACCEPTED_AFTER_SECONDS = 600.0
BUCKET_MS = 10_000
"""Arrivals in Kafka are stored as the start times of buckets of this length."""
MOST_BUCKETS = 100_000
"""The maximum number of buckets, which cover eleven days. The newest buckets are kept."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan of the topic at ``scan_ms``. ``ended``: partitions that were read to their end. ``last_kafka_ms``: the
    time up to which each partition was read, by Kafka's timestamps. ``arrivals``: the starts of the buckets of
    `BUCKET_MS` in which a record arrived. ``partitions``: all partitions of the topic ``topic_id``."""

    scan_ms: int
    ended: Set[int] = frozenset()
    last_kafka_ms: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    arrivals: Set[int] = frozenset()
    partitions: Set[int] = frozenset()
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class EvaluatorState:
    """The evaluator's row, which every transaction of an evaluator locks. So merges and evaluation passes are
    serialized, and a second or resumed evaluator gets `EvaluatorFenced`. Times are in ms. ``delay_ms``: windows that
    ended this long before ``evaluated_to_ms`` are decided. ``pass_to_ms``: the end of the pass that is running;
    ``cursor``: the last evaluated alarm of this pass. ``seen_ms``: the greatest watermark. ``watermarks_ms``: the
    watermark of each partition of the topic ``topic_id``."""

    evaluated_to_ms: int
    delay_ms: int
    pass_to_ms: int | None = None
    cursor: str = ""
    seen_ms: int = 0
    watermarks_ms: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    idle_periods: tuple[IdlePeriod, ...] = ()
    topic_id: str | None = None

    def delayed(self, delay_ms: int) -> EvaluatorState:
        """Return the state with a different delay. The set of decided windows does not change."""
        return replace(self, evaluated_to_ms=self.evaluated_to_ms - self.delay_ms + delay_ms, delay_ms=delay_ms)


def initial(scan: Scan, delay_ms: int) -> EvaluatorState:
    """Return the state before the first batch, whose scan is ``scan``. It begins at most a day before the scan, because
    every minute since then is evaluated, and a producer's clock can be behind."""
    first_ms = min(scan.arrivals, default=scan.scan_ms)
    return EvaluatorState(min(max(first_ms, scan.scan_ms - DAY_MS), scan.scan_ms), delay_ms)


def advanced(stored: EvaluatorState, scan: Scan, grace_ms: int) -> EvaluatorState:
    """Return the state after the scan. A repeated scan has no effect."""
    stored = _rewound(_of_topic(stored, scan), scan)
    watermarks = dict(stored.watermarks_ms)
    for partition, time_ms in scan.last_kafka_ms.items():
        watermarks[partition] = max(watermarks.get(partition, 0), min(time_ms, scan.scan_ms))
    for partition in scan.ended:
        watermarks[partition] = max(watermarks.get(partition, 0), scan.scan_ms)
    seen_ms = max(watermarks.values(), default=stored.seen_ms)
    return replace(
        stored,
        watermarks_ms=watermarks,
        seen_ms=max(stored.seen_ms, seen_ms),
        idle_periods=(
            *_lasting(stored, scan, grace_ms),
            *_idle(stored.seen_ms or stored.evaluated_to_ms, seen_ms, scan.arrivals, grace_ms),
        ),
    )


def _of_topic(stored: EvaluatorState, scan: Scan) -> EvaluatorState:
    """Restart the watermarks if the topic was recreated or its partitions have changed, because the watermark of a
    removed partition would delay evaluation indefinitely. Each partition delays evaluation until it is read."""
    known = (stored.topic_id, stored.watermarks_ms.keys())
    if not scan.partitions or known == (scan.topic_id, scan.partitions):
        return stored
    if stored.watermarks_ms:
        LOG.warning(
            "the topic has %d partitions and id %s, previously %d and %s: its watermarks restart at %d",
            *(len(scan.partitions), scan.topic_id, len(stored.watermarks_ms), stored.topic_id),
            stored.evaluated_to_ms,
        )
    watermarks = dict.fromkeys(sorted(scan.partitions), stored.evaluated_to_ms)
    return replace(stored, watermarks_ms=watermarks, topic_id=scan.topic_id)


def _rewound(stored: EvaluatorState, scan: Scan) -> EvaluatorState:
    """Move the state back to the scan if a process whose clock was ahead saved the state, and records arrive at the
    time of the scan. Otherwise no window would be evaluated until the clock reaches the stored time."""
    ahead_ms = stored.seen_ms - scan.scan_ms
    if ahead_ms <= LONGEST_SILENCE_MS:
        return stored
    if all(abs(time_ms - scan.scan_ms) > LONGEST_SILENCE_MS for time_ms in scan.last_kafka_ms.values()):
        return stored
    LOG.warning(
        "the clock of an earlier evaluation was %d s ahead; evaluation continues at the current time", ahead_ms // 1000
    )
    return replace(
        stored,
        evaluated_to_ms=min(stored.evaluated_to_ms, scan.scan_ms),
        seen_ms=scan.scan_ms,
        watermarks_ms={each: min(time_ms, scan.scan_ms) for each, time_ms in stored.watermarks_ms.items()},
        idle_periods=tuple(each for each in stored.idle_periods if each.end_ms <= scan.scan_ms),
    )


def least_ms(state: EvaluatorState) -> int:
    """Return the lowest watermark, up to which all due evaluations are possible."""
    return max(state.evaluated_to_ms, min(state.watermarks_ms.values(), default=0))


def _lasting(stored: EvaluatorState, scan: Scan, grace_ms: int) -> Iterator[IdlePeriod]:
    """Yield the stored idle periods that still count. After the lowest watermark, an idle period is provisional,
    because a partition's backlog can contain arrivals within it. No evaluation has used it yet."""
    least = least_ms(stored)
    for each in stored.idle_periods:
        if each.end_ms > least:
            yield from _idle(each.start_ms, each.end_ms, scan.arrivals, grace_ms)
        elif each.known_from_ms > stored.evaluated_to_ms:
            yield each


def _idle(known_ms: int, seen_ms: int, arrivals: Set[int], grace_ms: int) -> Iterator[IdlePeriod]:
    arrived = sorted(bucket for bucket in arrivals if known_ms < bucket < seen_ms)
    for start_ms, end_ms in pairwise((known_ms, *arrived, seen_ms)):
        if end_ms - start_ms > LONGEST_SILENCE_MS:
            yield IdlePeriod(start_ms, end_ms, end_ms + grace_ms)


class SteadyTime:
    """Provides the time of a scan, which ignores steps of the wall clock. After a step, the time follows the monotonic
    clock until a record arrives in Kafka at about the time of the wall clock, or no record arrives for
    `ACCEPTED_AFTER_SECONDS`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time_ms: int | None = None
        self._wall_ms = 0
        self._at = 0.0
        self._stepped_at: float | None = None

    def time_ms(self, wall_ms: int) -> int:
        now, self._wall_ms = self._clock.monotonic(), wall_ms
        steady_ms = wall_ms if self._time_ms is None else self._time_ms + round((now - self._at) * 1000)
        if abs(wall_ms - steady_ms) <= LONGEST_STEP_MS:
            self._stepped_at = None
        elif self._stepped_at is None:
            LOG.warning("the clock stepped by %d s; evaluation ignores the step", (wall_ms - steady_ms) // 1000)
            self._stepped_at = now
        elif now - self._stepped_at > ACCEPTED_AFTER_SECONDS:
            self._stepped_at = None
        self._time_ms, self._at = wall_ms if self._stepped_at is None else steady_ms, now
        return self._time_ms

    def compare(self, kafka_ms: Collection[int]) -> None:
        """Compare the clock with ``kafka_ms``, Kafka's timestamps of the last records."""
        if self._stepped_at is None or not kafka_ms:
            return
        self._stepped_at = self._clock.monotonic()
        if any(abs(time_ms - self._wall_ms) <= LONGEST_STEP_MS for time_ms in kafka_ms):
            self._time_ms, self._at = self._wall_ms, self._stepped_at


def load(connection: sa.Connection, job: str) -> EvaluatorState | None:
    """Return the stored state, or ``None`` before the first batch."""
    row = connection.execute(sa.select(alarm_evaluator).where(alarm_evaluator.c.job == job)).one_or_none()
    return None if row is None else _state(row)


def hold(connection: sa.Connection, job: str, stored: EvaluatorState | None) -> None:
    """Lock the row until the transaction ends. Raises `EvaluatorFenced` unless it equals ``stored``."""
    statement = sa.select(alarm_evaluator).where(alarm_evaluator.c.job == job).with_for_update()
    row = connection.execute(statement).one_or_none()
    # Compare the whole row, because a merge changes only watermarks and idle periods.
    if (None if row is None else _state(row)) != stored:
        raise EvaluatorFenced(job)


def save(connection: sa.Connection, job: str, new: EvaluatorState) -> None:
    """Write the row, within the transaction that has locked it."""
    row = _row(new)
    updated = connection.execute(alarm_evaluator.update().where(alarm_evaluator.c.job == job).values(row))
    if not updated.rowcount:
        connection.execute(alarm_evaluator.insert().values(row | {"job": job}))


def _state(row: sa.Row[Any]) -> EvaluatorState:
    return EvaluatorState(
        row.evaluated_to,
        row.delay,
        row.pass_to,
        row.cursor,
        row.seen,
        {int(partition): watermark_ms for partition, watermark_ms in row.watermarks.items()},
        tuple(IdlePeriod(*each) for each in row.idle_periods),
        row.topic_id,
    )


def _row(state: EvaluatorState) -> dict[str, Any]:
    return {
        "evaluated_to": state.evaluated_to_ms,
        "delay": state.delay_ms,
        "pass_to": state.pass_to_ms,
        "cursor": state.cursor,
        "seen": state.seen_ms,
        "watermarks": {str(partition): watermark_ms for partition, watermark_ms in state.watermarks_ms.items()},
        "idle_periods": [[each.start_ms, each.end_ms, each.known_from_ms] for each in state.idle_periods],
        "topic_id": state.topic_id,
    }


class Arrivals:
    """The arrival times in Kafka of the records of one batch. Executors add times, and the driver reads them after the
    batch. ``spark``: see `accumulator`."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._last: Accumulator[Mapping[int, tuple[int, int]]] = accumulator(spark, {}, Greatest())
        self._buckets: Accumulator[Set[int]] = accumulator(spark, frozenset(), Union(MOST_BUCKETS))

    @property
    def last_ms(self) -> dict[int, int]:
        """Return the time up to which each partition was read, by Kafka's timestamps."""
        return {partition: int(time_ms) for partition, (_, time_ms) in self._last.value.items()}

    @property
    def buckets(self) -> frozenset[int]:
        """Return the starts of the buckets of `BUCKET_MS` in which a record arrived."""
        return frozenset(self._buckets.value)

    def adder(self) -> Adder:
        """Return the function that executors call."""
        return Adder((self._last, self._buckets))
