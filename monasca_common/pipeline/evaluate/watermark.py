# SPDX-License-Identifier: Apache-2.0
"""Up to when the metrics of each partition are known, and when nothing was heard of the broker. Pure.

A producer may choose the timestamps that Kafka stores: so none moves a horizon beyond the time of the look.

The time of a look at the topic, which does not follow the steps of a machine's clock.

How far an evaluator is: one row, which every transaction of it holds. So its merges and its rounds are in one order,
and a second evaluator, or one that was frozen, is `EvaluatorFenced`.

When records came to Kafka: what the executors of a batch have seen of it, for the horizon.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Set
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from monasca_common.alarms.evaluation import Standstill
from monasca_common.kafka.clock import Clock
from monasca_common.pipeline.errors import EvaluatorFenced
from monasca_common.pipeline.spark.counts import Greatest, accumulator
from monasca_common.storage.retention import DAY_MS
from monasca_common.storage.sql.tables import alarm_evaluator

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession


LOG = logging.getLogger(__name__)

LONGEST_SILENCE_MS = 60_000
"""Longer without a look and without an arrival is a standstill."""


@dataclass(frozen=True, slots=True)
class Look:
    """At the topic at ``look_ms``. ``ended``: partitions that were read to their end of then. ``last_kafka_ms``: the
    Kafka timestamp of the last record that was read, by partition. ``arrivals``: the starts of buckets, of
    `arrivals.BUCKET_MS`. ``partitions``: all that the topic ``topic_id`` has."""

    look_ms: int
    ended: Set[int] = frozenset()
    last_kafka_ms: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    arrivals: Set[int] = frozenset()
    partitions: Set[int] = frozenset()
    topic_id: str | None = None


def begun(look: Look, delay_ms: int) -> StoredProgress:
    """Before the first batch, of which ``look`` is. A producer whose clock stands in the past moves it a day at most:
    every minute since then is evaluated."""
    first_ms = min(look.arrivals, default=look.look_ms)
    return StoredProgress(min(max(first_ms, look.look_ms - DAY_MS), look.look_ms), delay_ms)


def after(stored: StoredProgress, look: Look, grace_ms: int) -> StoredProgress:
    """The same look again changes nothing."""
    stored = _rewound(_of_topic(stored, look), look)
    horizons = dict(stored.horizons_ms)
    for partition, time_ms in look.last_kafka_ms.items():
        horizons[partition] = max(horizons.get(partition, 0), min(time_ms, look.look_ms))
    for partition in look.ended:
        horizons[partition] = max(horizons.get(partition, 0), look.look_ms)
    seen_ms = max(horizons.values(), default=stored.seen_ms)
    return replace(
        stored,
        horizons_ms=horizons,
        seen_ms=max(stored.seen_ms, seen_ms),
        standstills=(*_lasting(stored, look, grace_ms), *_new(stored, look, seen_ms, grace_ms)),
    )


def _of_topic(stored: StoredProgress, look: Look) -> StoredProgress:
    """Restart the horizons if the topic was recreated or has other partitions: a partition that no longer exists would
    hold evaluation back indefinitely. Each partition holds it back until it is read."""
    known = (stored.topic_id, stored.horizons_ms.keys())
    if not look.partitions or known == (look.topic_id, look.partitions):
        return stored
    if stored.horizons_ms:
        LOG.warning(
            "the topic has %d partitions and id %s, before %d and %s: its watermarks restart at %d",
            *(len(look.partitions), look.topic_id, len(stored.horizons_ms), stored.topic_id),
            stored.evaluated_to_ms,
        )
    horizons = dict.fromkeys(sorted(look.partitions), stored.evaluated_to_ms)
    return replace(stored, horizons_ms=horizons, topic_id=look.topic_id)


def _rewound(stored: StoredProgress, look: Look) -> StoredProgress:
    """Move the progress back to the look if it was saved by a clock that was ahead: the records that come now have the
    time of the look. Else no window would be evaluated until then."""
    ahead_ms = stored.seen_ms - look.look_ms
    if ahead_ms <= LONGEST_SILENCE_MS:
        return stored
    if all(abs(time_ms - look.look_ms) > LONGEST_SILENCE_MS for time_ms in look.last_kafka_ms.values()):
        return stored
    LOG.warning("alarms were evaluated by a clock that was %d s ahead; evaluation continues now", ahead_ms // 1000)
    return replace(
        stored,
        evaluated_to_ms=min(stored.evaluated_to_ms, look.look_ms),
        seen_ms=look.look_ms,
        horizons_ms={each: min(time_ms, look.look_ms) for each, time_ms in stored.horizons_ms.items()},
        standstills=tuple(each for each in stored.standstills if each.end_ms <= look.look_ms),
    )


def least_ms(progress: StoredProgress) -> int:
    """Evaluations that are due until then can be done."""
    return max(progress.evaluated_to_ms, min(progress.horizons_ms.values(), default=0))


def _lasting(stored: StoredProgress, look: Look, grace_ms: int) -> Iterator[Standstill]:
    """Beyond the least horizon a standstill is a guess, and no evaluation has asked for it: the backlog of a partition
    may have arrivals within."""
    least = least_ms(stored)
    for each in stored.standstills:
        if each.end_ms > least:
            yield from _silences(each.start_ms, each.end_ms, look.arrivals, grace_ms)
        elif each.known_from_ms > stored.evaluated_to_ms:
            yield each


def _new(stored: StoredProgress, look: Look, seen_ms: int, grace_ms: int) -> Iterator[Standstill]:
    return _silences(stored.seen_ms or stored.evaluated_to_ms, seen_ms, look.arrivals, grace_ms)


def _silences(known_ms: int, seen_ms: int, arrivals: Set[int], grace_ms: int) -> Iterator[Standstill]:
    arrived = sorted(bucket for bucket in arrivals if known_ms < bucket < seen_ms)
    for start_ms, end_ms in pairwise((known_ms, *arrived, seen_ms)):
        if end_ms - start_ms > LONGEST_SILENCE_MS:
            yield Standstill(start_ms, end_ms, end_ms + grace_ms)


LOG = logging.getLogger(__name__)

LONGEST_STEP_MS = 60_000
"""A larger difference between the wall clock and the monotonic clock is a step."""
ACCEPTED_AFTER_SECONDS = 600.0


class SteadyTime:
    """Continue at the pace of the monotonic clock after a step, until a record comes to Kafka at about the time of the
    wall clock, or no record comes for `ACCEPTED_AFTER_SECONDS`."""

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
            LOG.warning("the clock stepped by %d s; evaluation does not follow it", (wall_ms - steady_ms) // 1000)
            self._stepped_at = now
        elif now - self._stepped_at > ACCEPTED_AFTER_SECONDS:
            self._stepped_at = None
        self._time_ms, self._at = wall_ms if self._stepped_at is None else steady_ms, now
        return self._time_ms

    def compare(self, kafka_ms: Collection[int]) -> None:
        """``kafka_ms``: the times at which the last records came to Kafka."""
        if self._stepped_at is None or not kafka_ms:
            return
        self._stepped_at = self._clock.monotonic()
        if any(abs(time_ms - self._wall_ms) <= LONGEST_STEP_MS for time_ms in kafka_ms):
            self._time_ms, self._at = self._wall_ms, self._stepped_at


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """Times are in ms. ``delay_ms``: windows that ended so long before ``evaluated_to_ms`` are decided.
    ``round_to_ms``: of the round that is under way; ``cursor``: the last alarm of it that is done. ``seen_ms``: the
    greatest horizon. ``horizons_ms``: by partition of the topic ``topic_id``."""

    evaluated_to_ms: int
    delay_ms: int
    round_to_ms: int | None = None
    cursor: str = ""
    seen_ms: int = 0
    horizons_ms: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    standstills: tuple[Standstill, ...] = ()
    topic_id: str | None = None

    def delayed(self, delay_ms: int) -> StoredProgress:
        """With another delay: the same windows are decided."""
        return replace(self, evaluated_to_ms=self.evaluated_to_ms - self.delay_ms + delay_ms, delay_ms=delay_ms)


def load(connection: sa.Connection, job: str) -> StoredProgress | None:
    """None before the first batch."""
    row = connection.execute(sa.select(alarm_evaluator).where(alarm_evaluator.c.job == job)).one_or_none()
    return None if row is None else _progress(row)


def hold(connection: sa.Connection, job: str, stored: StoredProgress | None) -> None:
    """Lock the row until the transaction ends. Raises `EvaluatorFenced` unless it is as ``stored``."""
    statement = sa.select(alarm_evaluator).where(alarm_evaluator.c.job == job).with_for_update()
    row = connection.execute(statement).one_or_none()
    # All of it: a merge moves horizons and standstills alone.
    if (None if row is None else _progress(row)) != stored:
        raise EvaluatorFenced(job)


def save(connection: sa.Connection, job: str, new: StoredProgress) -> None:
    """Within the transaction that holds the row."""
    row = _row(new)
    updated = connection.execute(alarm_evaluator.update().where(alarm_evaluator.c.job == job).values(row))
    if not updated.rowcount:
        connection.execute(alarm_evaluator.insert().values(row | {"job": job}))


def adopt_delay(connection: sa.Connection, job: str, delay_ms: int) -> None:
    """Of a row that an older program wrote, the delay is that of the configuration."""
    own = (alarm_evaluator.c.job == job, alarm_evaluator.c.delay.is_(None))
    if connection.execute(sa.select(alarm_evaluator.c.job).where(*own)).one_or_none() is not None:
        connection.execute(alarm_evaluator.update().where(*own).values(delay=delay_ms))


def _progress(row: sa.Row[Any]) -> StoredProgress:
    return StoredProgress(
        row.evaluated_to,
        row.delay or 0,  # empty until `adopt_delay`
        row.round_to,
        row.cursor,
        row.seen,
        {int(partition): horizon_ms for partition, horizon_ms in row.horizons.items()},
        tuple(Standstill(*each) for each in row.standstills),
        row.topic_id,
    )


def _row(progress: StoredProgress) -> dict[str, Any]:
    return {
        "evaluated_to": progress.evaluated_to_ms,
        "delay": progress.delay_ms,
        "round_to": progress.round_to_ms,
        "cursor": progress.cursor,
        "seen": progress.seen_ms,
        "horizons": {str(partition): horizon_ms for partition, horizon_ms in progress.horizons_ms.items()},
        "standstills": [[each.start_ms, each.end_ms, each.known_from_ms] for each in progress.standstills],
        "topic_id": progress.topic_id,
    }


BUCKET_MS = 10_000
"""Of Kafka's times no more is kept than the starts of the buckets of this length in which a record came."""
MOST_BUCKETS = 100_000
"""Eleven days of them; of more the newest are kept."""


@dataclass(frozen=True, slots=True)
class ArrivalsAdder:
    """The part of `Arrivals` that is pickled for the executors."""

    last: Accumulator[Mapping[int, tuple[int, int]]]
    buckets: Accumulator[AbstractSet[int]]

    def __call__(self, last: Mapping[int, tuple[int, int]], buckets: AbstractSet[int]) -> None:
        self.last.add(last)
        self.buckets.add(buckets)


class Union:
    """How Spark adds up sets of buckets (an ``AccumulatorParam``)."""

    def zero(self, _value: AbstractSet[int]) -> AbstractSet[int]:
        return frozenset()

    def addInPlace(self, one: AbstractSet[int], other: AbstractSet[int]) -> AbstractSet[int]:  # noqa: N802
        whole = one | other
        return whole if len(whole) <= MOST_BUCKETS else set(sorted(whole)[-MOST_BUCKETS:])


class Arrivals:
    """Those of one batch; the driver reads them after the batch. ``spark``: see `accumulator`."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._last: Accumulator[Mapping[int, tuple[int, int]]] = accumulator(spark, {}, Greatest())
        self._buckets: Accumulator[AbstractSet[int]] = accumulator(spark, frozenset(), Union())

    @property
    def last_ms(self) -> dict[int, int]:
        """Kafka's time of the last record of each partition."""
        return {partition: int(time_ms) for partition, (_, time_ms) in self._last.value.items()}

    @property
    def buckets(self) -> frozenset[int]:
        """The starts of the buckets of `BUCKET_MS` in which a record came."""
        return frozenset(self._buckets.value)

    def adder(self) -> ArrivalsAdder:
        """The function that executors call."""
        return ArrivalsAdder(self._last, self._buckets)
