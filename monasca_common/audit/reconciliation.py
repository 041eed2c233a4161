# SPDX-License-Identifier: Apache-2.0
"""The reconciliation of all reports: complete, lost, late and duplicate messages per topic, bucket and tier.

The result does not depend on the order or repetition of reports. Each tier of a topic is compared with the previous
one:

* *sources* count acknowledged messages, each once;
* the *log* is the set of offsets that a counter found. Each acknowledged message is a record, so a lower number of
  records means missing messages. A higher number is a **surplus**, from a producer that is not audited or was killed
  before its report, or from a message that was sent twice;
* *readers* report handled offsets; the event times come from the log. Missing messages are identified by offset, so
  duplicates do not hide them;
* *copies* are logs with different offsets, but with the same number of distinct message ids as the log.

A missing message is **lost** if the tier has reported later messages, otherwise **late**.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from monasca_common.audit.reports import (
    AHEAD_MS,
    COPIES,
    LOG,
    SOURCES,
    AuditCount,
    AuditReport,
    HandledRange,
    reads,
)
from monasca_common.audit.runs import END, Runs, difference, intersection, size, union
from monasca_common.audit.settings import AuditSettings


class AuditVerdict(enum.Enum):
    """The states of a bucket. Each value is the explanation that users see."""

    OK = "all arrived"
    OPEN = "messages are missing, and the grace period is not over"
    RECREATED = "the topic was deleted and recreated, so it is unknown which messages arrived"
    UNCOUNTED = "no counter reads the log, so it is unknown which messages arrived, and the grace period is over"
    INCOMPLETE = "messages are missing, and the grace period is over"

    @property
    def is_final(self) -> bool:
        """Return whether the grace period has ended and some messages are missing or unknown."""
        return self in (AuditVerdict.UNCOUNTED, AuditVerdict.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result for one topic, bucket and tier. ``application``: the reader or producer; ``""`` for the log.

    ``expected``: messages of the previous tier. ``messages``: the number of messages in this tier. ``lost``, ``late``:
    missing messages. ``duplicates``: records that repeat a message id within the bucket. ``surplus``: records that no
    source reported, without duplicates.
    """

    topic: str
    bucket_ms: int
    tier: str
    application: str
    expected: int
    messages: int
    lost: int
    late: int
    duplicates: int
    surplus: int
    verdict: AuditVerdict

    @property
    def completeness(self) -> float:
        """The completeness from 0 to 1; 1 if no message was expected."""
        return 1.0 if not self.expected else 1.0 - (self.lost + self.late) / self.expected


@dataclass(slots=True)
class _Bucket:
    messages: int = 0
    offsets: dict[int, Runs] = field(default_factory=dict)
    duplicates: dict[int, Runs] = field(default_factory=dict)

    def add(self, count: AuditCount) -> None:
        self.messages += count.messages
        for own, reported in ((self.offsets, count.offsets), (self.duplicates, count.duplicates)):
            for partition, runs in reported.items():
                own[partition] = union(own.get(partition, ()), runs)

    @property
    def records(self) -> int:
        return sum(map(size, self.offsets.values()))

    @property
    def repeated(self) -> int:
        return sum(map(size, self.duplicates.values()))


@dataclass(slots=True)
class _TierCounts:
    """The counts of one tier of one topic; for readers and sources, the counts of one application."""

    buckets: dict[int, _Bucket] = field(default_factory=lambda: defaultdict(_Bucket))
    handled: dict[int, Runs] = field(default_factory=dict)
    positions: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    first_sent_ms: int = END
    since_ms: int | None = None
    logs: set[str] = field(default_factory=set)  # ids of the topic

    def note(self, report: AuditReport) -> None:
        self.first_sent_ms = min(self.first_sent_ms, report.sent_ms)
        if report.since_ms is not None:
            self.since_ms = report.since_ms if self.since_ms is None else min(self.since_ms, report.since_ms)

    def has_handled(self, handled: HandledRange) -> None:
        runs = self.handled.get(handled.partition, ())
        self.handled[handled.partition] = union(runs, ((handled.first, handled.next),))
        if handled.position is not None:
            self.positions[handled.partition].add(handled.position)

    def bucket(self, bucket_ms: int) -> _Bucket:
        return self.buckets.get(bucket_ms, _Bucket())

    def covered(self) -> dict[int, Runs]:
        """Return the handled offsets. They include the offsets below a position in the reader's database, because a
        reader that was killed may have stored them without a report."""
        found = {}
        for partition, runs in self.handled.items():
            filled = runs
            positions = self.positions.get(partition, set())
            for position in positions:
                reached = [following for _, following in runs if following <= position]
                reached += [earlier for earlier in positions if earlier < position]
                filled = union(filled, ((max(reached, default=position), position),))
            found[partition] = filled
        return found

    def misses(self, bucket_ms: int) -> bool:
        """Return whether this counter started after the bucket."""
        return self.since_ms is not None and bucket_ms < self.since_ms

    def is_beyond(self, bucket_ms: int, now_ms: int) -> bool:
        """Return whether a later bucket has records. Future timestamps are ignored."""
        # the newest bucket is usually the last
        return any(bucket_ms < each <= now_ms for each in reversed(self.buckets))


class AuditTotals:
    """The totals of all reports. Their size grows with the number of buckets, so services recompute them regularly."""

    def __init__(self, settings: AuditSettings) -> None:
        self._settings = settings
        self._topics: dict[str, dict[tuple[str, str], _TierCounts]] = defaultdict(lambda: defaultdict(_TierCounts))
        self._seen: set[str] = set()  # ids of reports that must not be counted twice
        self.foreign = 0  # ignored reports with a different bucket_seconds
        self.early = 0  # ignored messages with times more than a day ahead

    def add(self, report: AuditReport) -> None:
        """Add a report. A repeated report changes nothing."""
        if report.id in self._seen:
            return
        latest_ms = report.sent_ms + AHEAD_MS
        is_foreign = report.bucket_seconds != self._settings.bucket_seconds
        # Few ids are kept, because readers report each commit, and adding sets of offsets again does not change them.
        if is_foreign or any(count.messages or count.bucket_ms > latest_ms for count in report.counts):
            self._seen.add(report.id)
        if is_foreign:
            self.foreign += 1
            return
        application = "" if report.tier == LOG else report.application
        for count in report.counts:
            if count.bucket_ms > latest_ms:
                self.early += count.messages + sum(map(size, count.offsets.values()))
                continue
            counts = self._topics[count.topic][report.tier, application]
            counts.note(report)
            if count.messages or count.offsets or count.duplicates:  # otherwise, the count reports only the start
                counts.buckets[count.bucket_ms].add(count)
            if count.log:
                counts.logs.add(count.log)
        for handled in report.handled:
            counts = self._topics[handled.topic][report.tier, application]
            counts.note(report)
            counts.has_handled(handled)

    def reconciliations(self, now_ms: int, since_ms: int = 0) -> list[Reconciliation]:
        """Return the reconciliations of buckets since a time, in the order of topics, buckets and tiers."""
        found: list[Reconciliation] = []
        for topic in sorted(self._topics):
            reconciler = _TopicReconciler(topic, self._topics[topic], now_ms, self._settings)
            for bucket_ms in reconciler.buckets():
                if bucket_ms >= since_ms:
                    found += reconciler.reconciliations(bucket_ms)
        return found


class _TopicReconciler:
    """Reconciles one topic at a given time."""

    def __init__(
        self, topic: str, tiers: Mapping[tuple[str, str], _TierCounts], now_ms: int, settings: AuditSettings
    ) -> None:
        self._topic = topic
        self._now_ms = now_ms
        self._settings = settings
        self._tiers = tiers
        self._sources = {key: counts for key, counts in tiers.items() if key[0] in SOURCES}
        self._log = tiers.get((LOG, ""))
        self._copies = {key: counts for key, counts in tiers.items() if key[0] in COPIES}
        silent = {each[1:]: _TierCounts(first_sent_ms=0) for each in settings.readers if each.topic == topic}
        known = {key: counts for key, counts in tiers.items() if reads(key[0])}
        self._readers = dict(sorted((silent | known).items()))
        self._is_recreated = any(len(counts.logs) > 1 for counts in tiers.values())
        self._covered = {key: counts.covered() for key, counts in self._readers.items()}

    def buckets(self) -> list[int]:
        """Return the buckets of sources and logs. A bucket in which only readers count is older than all of these."""
        known = [counts for (tier, _), counts in self._tiers.items() if not reads(tier)]
        return sorted({bucket_ms for counts in known for bucket_ms in counts.buckets})

    def _acknowledged(self, bucket_ms: int) -> int:
        return sum(counts.bucket(bucket_ms).messages for counts in self._sources.values())

    def _moved(self, bucket_ms: int, acknowledged: int, log: _TierCounts) -> int:
        """Return how many missing records are a surplus of the previous bucket: a broker acknowledges a repeated batch
        with the timestamp of the batch's last record, which the sources then count for all its records."""
        previous_ms = self._settings.before(bucket_ms)
        before, reported = log.bucket(previous_ms), self._acknowledged(previous_ms)
        surplus = before.records - before.repeated - reported if reported else 0
        return max(0, min(surplus, acknowledged - log.bucket(bucket_ms).records))

    def reconciliations(self, bucket_ms: int) -> Iterator[Reconciliation]:
        for key, counts in sorted(self._sources.items()):
            bucket = counts.buckets.get(bucket_ms)
            if bucket is not None:
                yield self._reconciliation(key, bucket_ms, bucket.messages, bucket.messages)
        acknowledged = self._acknowledged(bucket_ms)
        if self._log is None:
            if acknowledged:
                yield self._reconciliation((LOG, ""), bucket_ms, acknowledged, 0, late=acknowledged)
            return
        if self._log.misses(bucket_ms):
            return
        bucket = self._log.bucket(bucket_ms)
        expected = acknowledged - self._moved(bucket_ms, acknowledged, self._log) if self._sources else bucket.records
        yield self._counted((LOG, ""), self._log, bucket_ms, expected)
        for key, counts in self._readers.items():
            yield self._read(key, counts, bucket_ms, bucket)
        for key, counts in sorted(self._copies.items()):
            if not counts.misses(bucket_ms):
                yield self._counted(key, counts, bucket_ms, bucket.records - bucket.repeated, by_id=True)

    def _counted(
        self, key: tuple[str, str], counts: _TierCounts, bucket_ms: int, expected: int, *, by_id: bool = False
    ) -> Reconciliation:
        """Reconcile a log by the number of its records, or of its distinct message ids."""
        bucket = counts.bucket(bucket_ms)
        records, repeated = bucket.records, bucket.repeated
        missing = max(0, expected - (records - repeated if by_id else records))
        lost = missing if counts.is_beyond(bucket_ms, self._now_ms) else 0
        surplus = max(0, records - repeated - expected)
        return self._reconciliation(
            key, bucket_ms, expected, records, lost, missing - lost, duplicates=repeated, surplus=surplus
        )

    def _read(self, key: tuple[str, str], counts: _TierCounts, bucket_ms: int, log: _Bucket) -> Reconciliation:
        """Reconcile a reader by offsets. Messages before its start are not expected."""
        covered = self._covered[key]
        expected = late = lost = 0
        for partition, runs in log.offsets.items():
            handled = covered.get(partition, ())
            begins = [first for first, _ in handled[:1]] + list(counts.positions.get(partition, ()))
            if not begins:
                awaited = size(runs) if bucket_ms >= counts.first_sent_ms else 0
                expected += awaited
                late += awaited
                continue
            wanted = intersection(runs, ((min(begins), END),))
            missing = difference(wanted, handled)
            end = handled[-1][1] if handled else min(begins)
            behind = size(intersection(missing, ((end, END),)))
            expected += size(wanted)
            late += behind
            lost += size(missing) - behind
        return self._reconciliation(key, bucket_ms, expected, expected - lost - late, lost, late)

    def _reconciliation(
        self,
        key: tuple[str, str],
        bucket_ms: int,
        expected: int,
        messages: int,
        lost: int = 0,
        late: int = 0,
        *,
        duplicates: int = 0,
        surplus: int = 0,
    ) -> Reconciliation:
        closes_ms = bucket_ms + (self._settings.bucket_seconds + self._settings.grace_seconds) * 1000
        over = AuditVerdict.UNCOUNTED if self._log is None else AuditVerdict.INCOMPLETE
        missing = over if self._now_ms >= closes_ms else AuditVerdict.OPEN
        verdict = missing if lost or late else AuditVerdict.OK
        verdict = AuditVerdict.RECREATED if self._is_recreated else verdict
        counts = expected, messages, lost, late, duplicates, surplus
        return Reconciliation(self._topic, bucket_ms, *key, *counts, verdict)
