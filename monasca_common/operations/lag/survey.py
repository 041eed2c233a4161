# SPDX-License-Identifier: Apache-2.0
"""Scans the groups of a cluster: their commits, the logs that they read, and the age of unread messages.

If the history does not contain the end of a log at an earlier commit, the end is estimated as the first offset whose
message is not older than that commit. If producers send old timestamps, the estimated end and lag are too large.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from monasca_common.kafka import Admin, AuthorizationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.lag.commit_records import OFFSETS_TOPIC, CommitRecord, commit_record
from monasca_common.operations.lag.history import LagHistory, end_at, spaced
from monasca_common.operations.lag.verdict import Commit, LagWindow, LogScan, PartitionState, expected_start
from monasca_common.operations.log_reading import LogReader
from monasca_common.operations.settings import DLQ_GROUP

_LOOK_BACK = 10  # number of windows, so that infrequent commits still fill a window
_OVERLAP_MS = 30_000  # milliseconds before the last survey in which it may have missed commits
_NO_HISTORY = LagHistory()

_GroupPartition = tuple[str, TopicPartition]
_Offsets = Mapping[str, Mapping[TopicPartition, int]]
_Leaders = Mapping[str, Mapping[int, int | None]]
_Commits = dict[_GroupPartition, list[CommitRecord]]


class LagSurvey:
    """Scans the groups of a cluster. ``timeout_seconds``: the time-out for reading committed offsets or messages."""

    def __init__(
        self, admin: Admin, connection: ConnectionSettings, window: LagWindow, *, timeout_seconds: float
    ) -> None:
        self._admin = admin
        self._reader = LogReader(connection, most_seconds=timeout_seconds)
        self._window = window
        self._times: dict[tuple[TopicPartition, int], int] = {}

    def groups(self) -> list[str]:
        """Return the sorted names of all groups except the dead-letter replay group, whose messages wait for an
        operator. Raises `TransportError`, like `scan`."""
        return sorted(set(self._admin.groups()) - {DLQ_GROUP})

    def scan(
        self,
        groups: Sequence[str],
        now_ms: int,
        topics: Collection[str] | None = None,
        history: LagHistory = _NO_HISTORY,
    ) -> dict[str, dict[TopicPartition, PartitionState]]:
        """Return the state of each group's existing partitions: partitions with an offset, partitions that a member
        reads, and all partitions of topics to which members subscribe. ``topics``: scan only these topics. ``history``:
        earlier scans. Raises `RetriableError` after a time-out.
        """
        offsets = {
            group: {each: found[each] for each in _of(topics, found)}
            for group, found in self._admin.offsets_of(groups).items()
        }
        assigned = self._admin.assignments(groups)
        leaders = self._admin.leaders()
        partitions_of = {group: {*offsets[group], *_of(topics, assigned[group].partitions)} for group in groups}
        for group, found in partitions_of.items():
            if assigned[group].subscribes:  # members share all partitions of a topic
                names = {each.topic for each in found}
                found |= {TopicPartition(name, number) for name in names for number in leaders.get(name, ())}
        since_ms = self._since_ms(offsets, now_ms, history)
        has_gap = history.surveyed_ms is not None and since_ms > history.surveyed_ms
        records = self._records(
            {group for group in groups if offsets[group]}, since_ms, len(leaders.get(OFFSETS_TOPIC, ()))
        )
        # The ends are read after the commits, so that no commit is beyond the end of its log.
        logs = _LogSpans(self._admin, set().union(*partitions_of.values()), leaders)
        pasts = {
            group: _GroupPast(
                group,
                history,
                sorted(partitions_of[group] & logs.ends.keys()),
                logs,
                now_ms=now_ms,
                window=self._window,
            )
            for group in groups
        }
        starts_of = {group: past.starts(offsets[group]) for group, past in pasts.items()}
        times = self._unread_since(starts_of.values(), logs)
        states = {}
        for group, committed in offsets.items():
            past, starts, partitions = pasts[group], starts_of[group], pasts[group].partitions
            unread = {each: times[each, at] for each, at in starts.items() if (each, at) in times}
            commits = {
                each: self._known_commits(
                    CommitRecord(group, each, committed[each], now_ms),
                    records,
                    past.commits[each],
                    since_ms,
                    has_gap=has_gap,
                )
                for each in partitions
                if each in committed
            }
            ends = self._ends_at(commits, unread, past, logs)
            states[group] = {
                each: PartitionState(
                    first=logs.firsts[each],
                    end=logs.ends[each],
                    commits=_commits(commits.get(each, ()), ends.get(each, ()), unread.get(each)),
                    unread_since_ms=unread.get(each),
                    retention_ms=logs.retention_ms[each.topic],
                    is_size_limited=logs.is_size_limited[each.topic],
                    scans=past.scans[each],
                    written_end=logs.written_ends[each],
                    is_assigned=assigned[group].has(each),
                )
                for each in partitions
            }
            for each in sorted(partitions_of[group] & logs.offline):
                known = history.of(group, each)
                states[group][each] = PartitionState(
                    0,
                    0,
                    () if known is None else known.commits,
                    scans=() if known is None else known.scans,
                    is_offline=True,
                )
        return states

    def _since_ms(self, offsets: _Offsets, now_ms: int, history: LagHistory) -> int:
        """Return the time from which to read commits: the time of the last survey if it covered all partitions."""
        since_ms = round(now_ms - self._window.seconds * _LOOK_BACK * 1000)
        known = all(history.of(group, each) is not None for group, found in offsets.items() for each in found)
        return max(since_ms, history.surveyed_ms - _OVERLAP_MS) if known and history.surveyed_ms else since_ms

    def _records(self, groups: set[str], since_ms: int, count: int) -> _Commits:
        """Return the groups' commits since that time, in order. ``count``: the partitions of the offsets topic."""
        found: _Commits = defaultdict(list)
        if not count and groups:
            raise AuthorizationError(f"{OFFSETS_TOPIC} is not visible: permit this user to describe and read it")
        partitions = [TopicPartition(OFFSETS_TOPIC, number) for number in range(count)]
        starts = self._admin.offsets_for_times(dict.fromkeys(partitions, since_ms)) if partitions else {}
        known = {partition: start for partition, start in starts.items() if start is not None}
        for message in self._reader.messages(known, self._admin.end_offsets(known)):
            record = commit_record(message.key, message.value, message.timestamp_ms or 0)
            if record is not None and record.group in groups:
                found[record.group, record.partition].append(record)
        return found

    def _known_commits(
        self,
        current: CommitRecord,
        records: _Commits,
        known: Sequence[CommitRecord],
        since_ms: int,
        *,
        has_gap: bool,
    ) -> list[CommitRecord]:
        """Return the commits in the history and newer commits in the topic. ``current``: the group's current offset.
        ``has_gap``: whether commits between the history and ``since_ms`` were not read.

        If ``current`` is after all commits, an open transaction hides later commits, and ``current`` counts as
        committed now.
        """
        newer = _newer(records[current.group, current.partition], known)
        kept = spaced_commits((*known, *newer), self._window)
        if not kept or (has_gap and not newer and current.offset != kept[-1].offset):
            # The current offset was committed at an unknown time before ``since_ms``.
            return spaced_commits((*kept, replace(current, time_ms=since_ms)), self._window)
        return spaced_commits((*kept, current), self._window) if _goes_back(current, kept[-1]) else kept

    def _unread_since(
        self, starts: Iterable[Mapping[TopicPartition, int]], logs: _LogSpans
    ) -> dict[tuple[TopicPartition, int], int]:
        """Return the time of the first message at or after each offset; an offset followed only by control records has
        no time. Times that an earlier scan read are reused while the message exists."""
        wanted = {(each, at) for group in starts for each, at in group.items() if at < logs.ends[each]}
        self._times = {
            (each, at): time_ms
            for (each, at), time_ms in self._times.items()
            if (each, at) in wanted and at >= logs.firsts[each]
        }
        missing: dict[TopicPartition, list[int]] = defaultdict(list)
        for each, at in sorted(wanted - self._times.keys()):
            missing[each].append(at)
        begins = {each: [max(at, logs.firsts[each]) for at in offsets] for each, offsets in missing.items()}
        for message in self._reader.at(begins, logs.ends):
            partition = TopicPartition(message.topic, message.partition)
            waiting = missing[partition]
            while waiting and waiting[0] <= message.offset:
                self._times[partition, waiting.pop(0)] = message.timestamp_ms or 0
        return self._times

    def _ends_at(
        self,
        commits: Mapping[TopicPartition, Sequence[CommitRecord]],
        unread: Mapping[TopicPartition, int],
        past: _GroupPast,
        logs: _LogSpans,
    ) -> dict[TopicPartition, list[int]]:
        """Return the end of each log at each commit: from scans if possible, otherwise estimated from timestamps, with
        one request per commit. If nothing is unread, the end is not needed and the committed offset is returned."""
        ends: dict[TopicPartition, list[int]] = {partition: [] for partition in commits}
        for number in range(max(map(len, commits.values()), default=0)):
            there = {partition: records[number] for partition, records in commits.items() if number < len(records)}
            found: dict[TopicPartition, int | None] = {
                partition: past.end_at(partition, record.time_ms) for partition, record in there.items()
            }
            times = {each: there[each].time_ms for each, end in found.items() if end is None and each in unread}
            asked = self._admin.offsets_for_times(times) if times else {}
            for partition, record in there.items():
                known = found[partition]
                if known is None and partition in asked:
                    known = logs.ends[partition] if asked[partition] is None else asked[partition]
                ends[partition].append(record.offset or 0 if known is None else known)
        return ends


class _LogSpans:
    """The logs of existing partitions: their starts, ends and retention. ``offline``: the partitions without a
    leader."""

    def __init__(self, admin: Admin, partitions: set[TopicPartition], leaders: _Leaders) -> None:
        there = {each for each in partitions if each.partition in leaders.get(each.topic, ())}
        self.offline = {each for each in there if leaders[each.topic][each.partition] is None}
        known = sorted(there - self.offline)
        self.firsts = admin.first_offsets(known)
        self.ends = admin.end_offsets(known)
        self.written_ends = admin.end_offsets(known, open_transactions=True)
        configs = admin.topic_configs({each.topic for each in known})
        self.retention_ms = {topic: retention_ms(config) for topic, config in configs.items()}
        self.is_size_limited = {topic: is_size_limited(config) for topic, config in configs.items()}


class _GroupPast:
    """The partitions of a group in earlier scans."""

    def __init__(
        self,
        group: str,
        history: LagHistory,
        partitions: Iterable[TopicPartition],
        logs: _LogSpans,
        *,
        now_ms: int,
        window: LagWindow,
    ) -> None:
        self.scans: dict[TopicPartition, tuple[LogScan, ...]] = {}
        self.commits: dict[TopicPartition, list[CommitRecord]] = {}
        self._ends: dict[TopicPartition, dict[int, int]] = {}
        self.partitions = list(partitions)
        self._logs, self._now_ms, self._window = logs, now_ms, window
        for each in self.partitions:
            known = history.of(group, each)
            commits = () if known is None else known.commits
            # If the clock was set back, scans in the future would hide a stop until the clock has caught up.
            self.scans[each] = tuple(scan for scan in history.scans(group, each) if scan.time_ms <= now_ms)
            self.commits[each] = [CommitRecord(group, each, commit.offset, commit.time_ms) for commit in commits]
            self._ends[each] = {commit.time_ms: commit.end for commit in commits}

    def starts(self, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset that the group reads next in each partition."""
        firsts = self._logs.firsts
        return {each: committed.get(each, expected_start(firsts[each], self.scans[each])) for each in self.partitions}

    def end_at(self, partition: TopicPartition, time_ms: int) -> int | None:
        """Return the end of the log at that time, or ``None`` if it cannot be derived from scans."""
        if time_ms in self._ends[partition]:
            return self._ends[partition][time_ms]
        first, end = self._logs.firsts[partition], self._logs.ends[partition]
        now = LogScan(self._now_ms, first, end, None, is_unread=True, read_to=first)
        return end_at((*self.scans[partition], now), time_ms, self._window)


def _of(topics: Collection[str] | None, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [each for each in partitions if topics is None or each.topic in topics]


def retention_ms(config: Mapping[str, str]) -> int | None:
    """Return the retention time of a topic with this configuration, or ``None`` if it is unlimited."""
    retention = int(config["retention.ms"])
    return retention if "delete" in config["cleanup.policy"] and retention >= 0 else None


def is_size_limited(config: Mapping[str, str]) -> bool:
    """Return whether a topic with this configuration limits its size."""
    return "delete" in config["cleanup.policy"] and int(config["retention.bytes"]) >= 0


def spaced_commits(records: Sequence[CommitRecord], window: LagWindow) -> list[CommitRecord]:
    """Return the last commits since the group's offset was deleted, thinned out to span the window.

    Without thinning, the verdict on a consumer with ten commits per second would cover only its last second. The commit
    before a rewind is kept, because it shows the rewind.
    """
    deleted = max((number for number, record in enumerate(records, 1) if record.offset is None), default=0)
    return spaced(records[deleted:], window, _goes_back)


def _goes_back(record: CommitRecord, later: CommitRecord) -> bool:
    return record.offset is not None and later.offset is not None and later.offset < record.offset


def _newer(records: Sequence[CommitRecord], known: Sequence[CommitRecord]) -> list[CommitRecord]:
    return [record for record in records if not known or record.time_ms > known[-1].time_ms]


def _commits(records: Sequence[CommitRecord], ends: Sequence[int], unread_since_ms: int | None) -> tuple[Commit, ...]:
    """Return commits with the ends of the log. If the group's clock is ahead, an estimated end can be too small; a
    message that was unread at the commit raises the end."""
    return tuple(
        Commit(
            record.time_ms, record.offset, max(at, record.offset + 1) if _was_unread(record, unread_since_ms) else at
        )
        for record, at in zip(records, ends, strict=True)
        if record.offset is not None
    )


def _was_unread(record: CommitRecord, unread_since_ms: int | None) -> bool:
    return unread_since_ms is not None and unread_since_ms <= record.time_ms
