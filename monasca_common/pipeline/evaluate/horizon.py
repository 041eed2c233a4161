# SPDX-License-Identifier: Apache-2.0
"""Up to when the metrics of each partition are known, and when nothing was heard of the broker. Pure.

A producer may choose the timestamps that Kafka stores: so none moves a horizon beyond the time of the look.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from monasca_common.alarms.evaluation import Standstill
from monasca_common.pipeline.evaluate.progress import StoredProgress
from monasca_common.storage.retention import DAY_MS

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
