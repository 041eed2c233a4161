# SPDX-License-Identifier: Apache-2.0
"""The results of earlier scans of groups, and the compacted topic that stores them.

The topic has a record per partition and group, with the last verdict and its inputs, and one record for the survey. A
newer record replaces an older one; a tombstone means that the group or the partition no longer exists. Keys and values
are JSON objects, so that other programs can read them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

import msgspec
from msgspec import structs

from monasca_common.kafka import Admin, Record
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.models.json_text import UNREADABLE
from monasca_common.operations.lag.verdict import (
    Commit,
    LagStatus,
    LagVerdict,
    LagWindow,
    LogScan,
    PartitionState,
    partition_lag,
    read_to,
)
from monasca_common.operations.log_reading import LogReader

_SURVEY = b'{"survey":"lag"}'


class _Timed(Protocol):
    @property
    def time_ms(self) -> int: ...


_TimedT = TypeVar("_TimedT", bound=_Timed)


class PartitionHistory(msgspec.Struct, frozen=True):
    """The verdict of the last scan, at ``time_ms``, and its inputs. Stored as a value in the topic."""

    time_ms: int
    lag: LagVerdict
    commits: tuple[Commit, ...] = ()
    scans: tuple[LogScan, ...] = msgspec.field(default=(), name="looks")
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class LagHistory:
    """``surveyed_ms``: the time of the last survey, or ``None``. ``groups``: the histories by group, then by
    partition."""

    surveyed_ms: int | None = None
    groups: Mapping[str, Mapping[TopicPartition, PartitionHistory]] = field(default_factory=dict)

    def of(self, group: str, partition: TopicPartition) -> PartitionHistory | None:
        return self.groups.get(group, {}).get(partition)

    def scans(self, group: str, partition: TopicPartition) -> tuple[LogScan, ...]:
        """Return the earlier scans of a partition. If nothing has changed since its record was written, the last survey
        also counts as a scan."""
        known = self.of(group, partition)
        if known is None or not known.scans:
            return ()
        if self.surveyed_ms is None or known.scans[-1].time_ms >= self.surveyed_ms:
            return known.scans
        return (*known.scans, structs.replace(known.scans[-1], time_ms=self.surveyed_ms))


class _HistoryKey(msgspec.Struct, frozen=True):
    group: str
    topic: str
    partition: int


class _HistorySurvey(msgspec.Struct, frozen=True):
    time_ms: int
    version: Literal[1] = 1


def kept_scans(scans: Sequence[LogScan], window: LagWindow) -> tuple[LogScan, ...]:
    """Return the scans to keep: the scans of the window, the last scan with nothing unread, the scans before and after
    the last moves of the log's start, and the first scan if the group has no commit yet."""
    recent = spaced(scans, window)
    read = [scan for scan in scans if not scan.is_unread][-1:]
    moved = [later for earlier, later in pairwise(scans) if later.first > earlier.first]
    before = [earlier for earlier, later in pairwise(scans) if later.first > earlier.first][-window.commits :][:1]
    first = [scan for scan in scans[:1] if scan.position is None and scans[-1].position is None]
    kept = {scan.time_ms: scan for scan in (*first, *before, *moved[-window.commits :], *read, *recent)}
    return tuple(kept[time_ms] for time_ms in sorted(kept))


def spaced(
    entries: Sequence[_TimedT], window: LagWindow, stays: Callable[[_TimedT, _TimedT], bool] = lambda _, __: False
) -> list[_TimedT]:
    """Return the last entries, thinned out to span the window. The newest entry is always kept; ``stays`` returns
    whether an entry is kept before the next one.

    Entries are chosen from the oldest to the newest, so that chosen entries stay chosen when later scans add entries.
    """
    least_ms = window.seconds * 1000 / max(1, window.commits - 2)
    kept: list[_TimedT] = []
    for entry in entries:
        if len(kept) > 1 and kept[-1].time_ms - kept[-2].time_ms < least_ms and not stays(kept[-1], entry):
            kept[-1] = entry
        else:
            kept.append(entry)
    return kept[-window.commits :]


def end_at(scans: Sequence[LogScan], time_ms: int, window: LagWindow) -> int | None:
    """Return the end of the log at that time, interpolated between two scans, or ``None`` if the scans are missing or
    too far apart."""
    for earlier, later in pairwise(scans):
        if earlier.time_ms <= time_ms <= later.time_ms:
            apart_ms, grown = later.time_ms - earlier.time_ms, later.end - earlier.end
            if grown and apart_ms > window.seconds * 1000:
                return None
            return earlier.end + round(grown * (time_ms - earlier.time_ms) / max(1, apart_ms))
    return None


def following(
    states: Mapping[str, Mapping[TopicPartition, PartitionState]], now_ms: int, window: LagWindow
) -> LagHistory:
    """Return the history after a scan with these states, including their verdicts."""
    return LagHistory(
        now_ms,
        {
            group: {partition: _followed(state, now_ms, window) for partition, state in partitions.items()}
            for group, partitions in states.items()
        },
    )


def _followed(state: PartitionState, now_ms: int, window: LagWindow) -> PartitionHistory:
    if state.is_offline:
        return PartitionHistory(now_ms, partition_lag(state, now_ms, window), state.commits, state.scans)
    position = state.commits[-1].offset if state.commits else None
    is_first = not state.scans and state.is_assigned is not False
    is_taken = bool(state.scans) and state.scans[0].is_unread and state.is_assigned is True
    if position is None and (is_first or is_taken):
        # A new member without commits can start at the end of the log.
        state = replace(state, unread_since_ms=None, scans=())
    is_unread, is_open = state.unread_since_ms is not None, (state.written_end or 0) > state.end
    scan = LogScan(now_ms, state.first, state.end, position, is_unread, read_to(state), is_open)
    scans = kept_scans((*state.scans, scan), window)
    return PartitionHistory(now_ms, partition_lag(state, now_ms, window), state.commits, scans)


def offline_partitions(partitions: Mapping[TopicPartition, PartitionHistory]) -> list[str]:
    """Return the partitions without a leader as ``topic/partition``."""
    offline = sorted(each for each, known in partitions.items() if known.lag.status is LagStatus.OFFLINE)
    return [f"{each.topic}/{each.partition}" for each in offline]


def to_keep(kept: LagHistory, after: LagHistory) -> LagHistory:
    """Return the history that the topic should contain: a partition without changes keeps its record."""
    groups = {
        group: {partition: _newest(kept.of(group, partition), known) for partition, known in partitions.items()}
        for group, partitions in after.groups.items()
    }
    return LagHistory(after.surveyed_ms, groups)


def _newest(kept: PartitionHistory | None, known: PartitionHistory) -> PartitionHistory:
    if kept is None or kept.commits != known.commits or kept.lag != known.lag:
        return known
    if not known.scans or not kept.scans or known.scans[-1].is_unread:
        return known
    return kept if structs.replace(known.scans[-1], time_ms=kept.scans[-1].time_ms) == kept.scans[-1] else known


def records(kept: LagHistory, after: LagHistory) -> Iterator[Record]:
    """Yield the records that update the topic; the last one is the survey's record."""
    for group, partitions in after.groups.items():
        for partition, known in partitions.items():
            if kept.of(group, partition) != known:
                yield Record(msgspec.json.encode(known), key=_key(group, partition))
    for group, partitions in kept.groups.items():
        for partition in partitions:
            if after.of(group, partition) is None:
                yield Record(None, key=_key(group, partition))
    if after.surveyed_ms is not None:
        yield Record(msgspec.json.encode(_HistorySurvey(after.surveyed_ms)), key=_SURVEY)


def read_history(
    admin: Admin, connection: ConnectionSettings, topic: str, *, timeout_seconds: float
) -> LagHistory | None:
    """Return the history in the topic, or ``None`` if the topic does not exist. Raises `TransportError`."""
    count = admin.partition_counts().get(topic)
    if count is None:
        return None
    starts = admin.first_offsets(TopicPartition(topic, number) for number in range(count))
    messages = LogReader(connection, most_seconds=timeout_seconds).messages(starts, admin.end_offsets(starts))
    return history_of((message.key, message.value) for message in messages)


def history_of(records: Iterable[tuple[bytes | None, bytes | None]]) -> LagHistory:
    """Return the history from these ordered keys and values; ignore records of other versions and programs."""
    values: dict[bytes, bytes | None] = {key: value for key, value in records if key is not None}
    groups: dict[str, dict[TopicPartition, PartitionHistory]] = defaultdict(dict)
    surveyed_ms = None
    for key, value in values.items():
        if value is None:
            continue
        with contextlib.suppress(*UNREADABLE):
            if key == _SURVEY:
                surveyed_ms = msgspec.json.decode(value, type=_HistorySurvey).time_ms
            else:
                whose = msgspec.json.decode(key, type=_HistoryKey)
                partition = TopicPartition(whose.topic, whose.partition)
                groups[whose.group][partition] = msgspec.json.decode(value, type=PartitionHistory)
    return LagHistory(surveyed_ms, dict(groups))


def _key(group: str, partition: TopicPartition) -> bytes:
    return msgspec.json.encode(_HistoryKey(group, partition.topic, partition.partition))
