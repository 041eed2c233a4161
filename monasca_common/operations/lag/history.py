# SPDX-License-Identifier: Apache-2.0
"""The results of earlier scans of groups, and the compacted topic that stores them.

The topic has a record for each partition of each group, with the last verdict and its inputs, and one for the survey. A
newer record replaces an older one; a tombstone means that the group or the partition no longer exists. Keys and values
are JSON objects, so that other programs can read them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec

from monasca_common.kafka import Admin, Record
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
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

_VERSION = 1
_SURVEY = b'{"survey":"lag"}'


@dataclass(frozen=True, slots=True)
class PartitionHistory:
    """``lag``: the verdict of the last scan, at ``time_ms``."""

    time_ms: int
    lag: LagVerdict
    commits: tuple[Commit, ...] = ()
    scans: tuple[LogScan, ...] = ()


@dataclass(frozen=True, slots=True)
class LagHistory:
    """``surveyed_ms``: the time of the last survey, or ``None``. ``groups``: by name, then by partition."""

    surveyed_ms: int | None = None
    groups: Mapping[str, Mapping[TopicPartition, PartitionHistory]] = field(default_factory=dict)

    def of(self, group: str, partition: TopicPartition) -> PartitionHistory | None:
        return self.groups.get(group, {}).get(partition)

    def scans(self, group: str, partition: TopicPartition) -> tuple[LogScan, ...]:
        """Return the earlier scans of a partition. If nothing has changed since its record was written, the last survey
        counts as a scan too."""
        known = self.of(group, partition)
        if known is None or not known.scans:
            return ()
        if self.surveyed_ms is None or known.scans[-1].time_ms >= self.surveyed_ms:
            return known.scans
        return (*known.scans, replace(known.scans[-1], time_ms=self.surveyed_ms))


class _HistoryKey(msgspec.Struct, frozen=True):
    group: str
    topic: str
    partition: int


class _HistoryLag(msgspec.Struct, frozen=True):
    status: str
    messages: int
    seconds: float
    deleted: int
    headroom_seconds: float | None
    completeness: float
    truncated: int = 0
    lost_in_seconds: float | None = None
    expires_soon: bool = False
    hidden: int = 0


class _HistoryValue(msgspec.Struct, frozen=True):
    """``commits``: time, offset, end. ``scans``: the fields of `LogScan`."""

    version: int
    time_ms: int
    lag: _HistoryLag
    commits: tuple[tuple[int, int, int], ...] = ()
    scans: tuple[tuple[int, int, int, int | None, bool, int, bool], ...] = msgspec.field(default=(), name="looks")


class _HistorySurvey(msgspec.Struct, frozen=True):
    version: int
    time_ms: int


def kept_scans(scans: Sequence[LogScan], window: LagWindow) -> tuple[LogScan, ...]:
    """Return the scans to keep: those of the window, the last with nothing unread, those after which the log's start
    had moved (one window of them), and the first one if the group had no commit yet."""
    recent = _spaced(scans, window)
    read = [scan for scan in scans if not scan.is_unread][-1:]
    moved = [later for earlier, later in pairwise(scans) if later.first > earlier.first]
    before = [earlier for earlier, later in pairwise(scans) if later.first > earlier.first][-window.commits :][:1]
    first = [scan for scan in scans[:1] if scan.position is None and scans[-1].position is None]
    kept = {scan.time_ms: scan for scan in (*first, *before, *moved[-window.commits :], *read, *recent)}
    return tuple(kept[time_ms] for time_ms in sorted(kept))


def _spaced(scans: Sequence[LogScan], window: LagWindow) -> list[LogScan]:
    """Thin out from the oldest on, so that kept scans stay; always keep the newest."""
    least_ms = window.seconds * 1000 / max(1, window.commits - 2)
    kept: list[LogScan] = []
    for scan in scans:
        if len(kept) > 1 and kept[-1].time_ms - kept[-2].time_ms < least_ms:
            kept[-1] = scan
        else:
            kept.append(scan)
    return kept[-window.commits :]


def end_at(scans: Sequence[LogScan], time_ms: int, window: LagWindow) -> int | None:
    """Return the end of the log at that time, interpolated between two scans; ``None`` if they are too far apart or
    missing."""
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
    """Return the history after a scan with these states, with the verdicts on them."""
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
        # A new member without commits may start at the end of the log.
        state = replace(state, unread_since_ms=None, scans=())
    is_unread, is_open = state.unread_since_ms is not None, (state.written_end or 0) > state.end
    scan = LogScan(now_ms, state.first, state.end, position, is_unread, read_to(state), is_open)
    scans = kept_scans((*state.scans, scan), window)
    return PartitionHistory(now_ms, partition_lag(state, now_ms, window), state.commits, scans)


def offline_partitions(partitions: Mapping[TopicPartition, PartitionHistory]) -> list[str]:
    """Name the partitions without a leader, as ``topic/partition``."""
    offline = sorted(each for each, known in partitions.items() if known.lag.status is LagStatus.OFFLINE)
    return [f"{each.topic}/{each.partition}" for each in offline]


def to_keep(kept: LagHistory, after: LagHistory) -> LagHistory:
    """Return what the topic should contain: a partition without changes keeps its record."""
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
    return kept if replace(known.scans[-1], time_ms=kept.scans[-1].time_ms) == kept.scans[-1] else known


def records(kept: LagHistory, after: LagHistory) -> Iterator[Record]:
    """Return the records that update the topic; the record of the survey is the last."""
    for group, partitions in after.groups.items():
        for partition, known in partitions.items():
            if kept.of(group, partition) != known:
                yield Record(msgspec.json.encode(_value(known)), key=_key(group, partition))
    for group, partitions in kept.groups.items():
        for partition in partitions:
            if after.of(group, partition) is None:
                yield Record(None, key=_key(group, partition))
    if after.surveyed_ms is not None:
        yield Record(msgspec.json.encode(_HistorySurvey(_VERSION, after.surveyed_ms)), key=_SURVEY)


def read_history(
    admin: Admin, connection: ConnectionSettings, topic: str, *, timeout_seconds: float
) -> LagHistory | None:
    """Return the history in the topic; ``None`` if the topic does not exist. Raises `TransportError`."""
    count = admin.partition_counts().get(topic)
    if count is None:
        return None
    starts = admin.first_offsets(TopicPartition(topic, number) for number in range(count))
    messages = LogReader(connection, most_seconds=timeout_seconds).messages(starts, admin.end_offsets(starts))
    return history_of((message.key, message.value) for message in messages)


def history_of(records: Iterable[tuple[bytes | None, bytes | None]]) -> LagHistory:
    """Return the history of these keys and values in their order; ignore records of other versions."""
    values: dict[bytes, bytes | None] = {key: value for key, value in records if key is not None}
    groups: dict[str, dict[TopicPartition, PartitionHistory]] = defaultdict(dict)
    surveyed_ms = None
    for key, value in values.items():
        if value is None:
            continue
        with contextlib.suppress(msgspec.DecodeError, KeyError):
            if key == _SURVEY:
                surveyed_ms = msgspec.json.decode(value, type=_HistorySurvey).time_ms
            else:
                whose = msgspec.json.decode(key, type=_HistoryKey)
                known = _history(msgspec.json.decode(value, type=_HistoryValue))
                groups[whose.group][TopicPartition(whose.topic, whose.partition)] = known
    return LagHistory(surveyed_ms, dict(groups))


def _key(group: str, partition: TopicPartition) -> bytes:
    return msgspec.json.encode(_HistoryKey(group, partition.topic, partition.partition))


def _value(known: PartitionHistory) -> _HistoryValue:
    lag: dict[str, Any] = {name: getattr(known.lag, name) for name in _HistoryLag.__struct_fields__ if name != "status"}
    return _HistoryValue(
        _VERSION,
        known.time_ms,
        _HistoryLag(status=known.lag.status.name, **lag),
        tuple((each.time_ms, each.offset, each.end) for each in known.commits),
        tuple(
            (each.time_ms, each.first, each.end, each.position, each.is_unread, each.read_to, each.is_open)
            for each in known.scans
        ),
    )


def _history(value: _HistoryValue) -> PartitionHistory:
    lag: dict[str, Any] = {name: getattr(value.lag, name) for name in _HistoryLag.__struct_fields__ if name != "status"}
    return PartitionHistory(
        value.time_ms,
        LagVerdict(status=LagStatus[value.lag.status], **lag),
        tuple(Commit(*each) for each in value.commits),
        tuple(LogScan(*each) for each in value.scans),
    )
