# SPDX-License-Identifier: Apache-2.0
"""Looks at the groups of a cluster once: their commits, the logs that they read, and how old what is unread is.

A look has no memory, so the end of a log at an earlier commit is estimated: it is the first offset whose message is
not older than that commit. Where producers send old timestamps, that is too far, and an earlier lag looks larger.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from monasca_common.kafka import (
    Admin,
    AuthorizationError,
    Message,
    RebalanceListener,
    RetriableError,
    open_consumer,
)
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.monitoring.commit_records import OFFSETS_TOPIC, CommitRecord, commit_record
from monasca_common.monitoring.lag import Commit, LagWindow, PartitionState

_NAME = "monasca-lag"  # this group never gets an offset: a survey only reads
_POLL_SECONDS = 0.2
_POLL_MESSAGES = 5000
_MIB = 1024 * 1024
# How many windows it looks back, so that commits which come seldom still fill one.
_LOOK_BACK = 10

_Commits = dict[tuple[str, TopicPartition], list[CommitRecord]]


class LagSurvey:
    """``timeout_seconds``: how long it may read the topic of commits, and the unread messages of each group."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, window: LagWindow, *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._connection = connection
        self._window = window
        self._timeout_seconds = timeout_seconds

    def groups(self) -> list[str]:
        """Every group of the cluster, in the order of their names. Raises `TransportError`; so does `look`."""
        return sorted(self._admin.groups())

    def look(
        self, groups: Sequence[str], now_ms: int, topics: Collection[str] | None = None
    ) -> dict[str, dict[TopicPartition, PartitionState]]:
        """The partitions of each group that has an offset in them, and exist. ``topics``: of these alone.

        Raises `RetriableError` if it takes too long.
        """
        since_ms = round(now_ms - self._window.seconds * _LOOK_BACK * 1000)
        offsets = {group: _of(topics, self._admin.group_offsets(group)) for group in groups}
        records = self._records({group for group in groups if offsets[group]}, since_ms)
        # The ends are asked for after the commits, so that no commit lies beyond them because of the order.
        logs = _LogSpans(self._admin, {partition for each in offsets.values() for partition in each})
        states = {}
        for group, committed in offsets.items():
            own = {partition: offset for partition, offset in committed.items() if partition in logs.ends}
            late = {partition: offset for partition, offset in own.items() if offset < logs.ends[partition]}
            unread = self._unread_since(late, logs)
            commits = {
                partition: spaced(records[group, partition], self._window) or [_old(group, partition, offset, since_ms)]
                for partition, offset in own.items()
            }
            ends = self._ends_at({partition: commits[partition] for partition in unread}, logs)
            states[group] = {
                partition: PartitionState(
                    first=logs.firsts[partition],
                    end=logs.ends[partition],
                    commits=_commits(
                        commits[partition], ends.get(partition), logs.ends[partition], unread.get(partition)
                    ),
                    unread_since_ms=unread.get(partition),
                    retention_ms=logs.retention_ms[partition.topic],
                )
                for partition in sorted(own)
            }
        return states

    def _records(self, groups: set[str], since_ms: int) -> _Commits:
        """The commits of these groups since then, in their order."""
        found: _Commits = defaultdict(list)
        count = self._admin.partition_counts().get(OFFSETS_TOPIC, 0)
        if not count and groups:
            raise AuthorizationError(f"{OFFSETS_TOPIC} cannot be seen: let this user describe and read it")
        partitions = [TopicPartition(OFFSETS_TOPIC, number) for number in range(count)]
        starts = self._admin.offsets_for_times(dict.fromkeys(partitions, since_ms)) if partitions else {}
        for message in self._read({partition: start for partition, start in starts.items() if start is not None}):
            record = commit_record(message.key, message.value, message.timestamp_ms or 0)
            if record is not None and record.group in groups:
                found[record.group, record.partition].append(record)
        return found

    def _unread_since(self, late: Mapping[TopicPartition, int], logs: _LogSpans) -> dict[TopicPartition, int]:
        """The time of the first message at or after each offset; none where only markers of transactions are left."""
        starts = {partition: max(offset, logs.firsts[partition]) for partition, offset in late.items()}
        times: dict[TopicPartition, int] = {}
        for message in self._read(starts, only_first=True):
            times.setdefault(TopicPartition(message.topic, message.partition), message.timestamp_ms or 0)
        return times

    def _ends_at(
        self, commits: Mapping[TopicPartition, Sequence[CommitRecord]], logs: _LogSpans
    ) -> dict[TopicPartition, list[int]]:
        """Where each log ended at each of its commits, as far as timestamps tell: one request for a commit of each."""
        ends: dict[TopicPartition, list[int]] = {partition: [] for partition in commits}
        for number in range(max(map(len, commits.values()), default=0)):
            times = {
                partition: records[number].time_ms for partition, records in commits.items() if number < len(records)
            }
            for partition, offset in self._admin.offsets_for_times(times).items():
                ends[partition].append(logs.ends[partition] if offset is None else offset)
        return ends

    def _read(self, starts: Mapping[TopicPartition, int], *, only_first: bool = False) -> Iterator[Message]:
        """What is in these partitions from each start to the end of the log; or the first message of each.

        Raises `RetriableError` when time is up before every partition is read: what was not read is not known.
        """
        if not starts:
            return
        settings = ConsumerSettings(self._connection, (_NAME,), _NAME, buffer_bytes=_MIB, topic_check_seconds=0.0)
        missing = set(starts)
        deadline = time.monotonic() + self._timeout_seconds
        with open_consumer(settings, partitions=starts, listener=_StartsAt(starts)) as consumer:
            while missing and time.monotonic() < deadline:
                for part in consumer.poll(_POLL_MESSAGES, timeout=_POLL_SECONDS).partitions:
                    yield from part
                    if only_first:
                        missing.discard(part.topic_partition)
                        consumer.pause([part.topic_partition])
                missing -= consumer.take_ends().keys()
        if missing:
            first = min(missing)
            raise RetriableError(
                f"{first.topic}/{first.partition} and {len(missing) - 1} more could not be read within "
                f"{self._timeout_seconds:g} s, so nothing is known of lag: try again, or look at fewer groups"
            )


class _StartsAt(RebalanceListener):
    """Gives each partition its start, so that nothing is asked of the group, nor committed to it."""

    def __init__(self, starts: Mapping[TopicPartition, int]) -> None:
        self._starts = starts

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self._starts[partition] for partition in partitions}


class _LogSpans:
    """The logs of those partitions that exist: where each begins and ends, and how long its topic keeps messages."""

    def __init__(self, admin: Admin, partitions: set[TopicPartition]) -> None:
        counts = admin.partition_counts()
        known = sorted(each for each in partitions if each.partition < counts.get(each.topic, 0))
        self.firsts = admin.first_offsets(known)
        self.ends = admin.end_offsets(known)
        configs = admin.topic_configs({each.topic for each in known})
        self.retention_ms = {topic: retention_ms(config) for topic, config in configs.items()}


def _of(topics: Collection[str] | None, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    return offsets if topics is None else {tp: offset for tp, offset in offsets.items() if tp.topic in topics}


def retention_ms(config: Mapping[str, str]) -> int | None:
    """How long a topic with this configuration keeps messages; ``None`` where time removes nothing."""
    retention = int(config["retention.ms"])
    return retention if "delete" in config["cleanup.policy"] and retention >= 0 else None


def spaced(records: Sequence[CommitRecord], window: LagWindow) -> list[CommitRecord]:
    """The last of them, so far from each other that they span the window; the newest always.

    A consumer that commits ten times a second would otherwise be judged by its last second.
    """
    least_ms = window.seconds * 1000 / max(1, window.commits - 1)
    kept: list[CommitRecord] = []
    for record in reversed(records):
        if record.offset is None:
            break  # what was committed before is forgotten
        if not kept or kept[-1].time_ms - record.time_ms >= least_ms:
            kept.append(record)
    return kept[: window.commits][::-1]


def _old(group: str, partition: TopicPartition, offset: int, since_ms: int) -> CommitRecord:
    """A commit from before the look back. Its time is unknown, and not later than that."""
    return CommitRecord(group, partition, offset, since_ms)


def _commits(
    records: Sequence[CommitRecord], ends: Sequence[int] | None, end: int, unread_since_ms: int | None
) -> tuple[Commit, ...]:
    """``ends``: ``None`` where nothing is unread, so that nobody needs them. A message from a clock that is ahead makes
    them too small, so what is unread since before a commit counts."""
    known = [end] * len(records) if ends is None else ends
    return tuple(
        Commit(
            record.time_ms, record.offset, max(at, record.offset + 1) if _was_unread(record, unread_since_ms) else at
        )
        for record, at in zip(records, known, strict=True)
        if record.offset is not None
    )


def _was_unread(record: CommitRecord, unread_since_ms: int | None) -> bool:
    return unread_since_ms is not None and unread_since_ms <= record.time_ms
