# SPDX-License-Identifier: Apache-2.0
"""The verdict on a consumer: a pure function of its recent commits, its log, and the time.

The number of unread messages alone is not sufficient: a large lag that falls is healthy, while a lag of one message
that stays for an hour is not. The verdict depends on changes within a window. Times are in milliseconds since 1970.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

_LONG_PAUSE = 10  # multiple of the window and of the usual interval between commits


class LagStatus(enum.Enum):
    """The status of a partition or group, from best to worst."""

    OK = "OK"
    WARNING = "WARNING"
    STALL = "STALL"
    STOP = "STOP"
    REWIND = "REWIND"
    OFFLINE = "OFFLINE"

    @property
    def meaning(self) -> str:
        """Return the phrase that follows "the group …"."""
        return _MEANINGS[self]

    @property
    def is_error(self) -> bool:
        return self not in (LagStatus.OK, LagStatus.WARNING)


_MEANINGS = {
    LagStatus.OK: "keeps up or catches up",
    LagStatus.WARNING: "commits, but its lag does not fall, its offset is beyond the end of the log, or an open "
    "transaction hides messages",
    LagStatus.STALL: "commits the same offset repeatedly",
    LagStatus.STOP: "has unread messages but does not commit",
    LagStatus.REWIND: "returned to an earlier offset",
    LagStatus.OFFLINE: "has a partition without a leader, which can be neither read nor checked",
}


@dataclass(frozen=True, slots=True)
class LagWindow:
    """The window of a verdict. ``commits``: the number of commits in a complete window. ``seconds``: the time for which
    a consumer may be silent or late. ``least_headroom``: 0 to 1; messages expire soon if at most this fraction of their
    retention time remains until one of them is deleted unread. ``allowed_lag``: the highest number of unread
    messages per partition with the status OK.
    """

    commits: int = 10
    seconds: float = 60.0
    least_headroom: float = 0.25
    allowed_lag: int = 0


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """A commit. ``offset``: the next offset to read. ``end``: the end of the log at the time of the commit."""

    time_ms: int
    offset: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.offset)


class LogScan(msgspec.Struct, frozen=True, array_like=True):
    """A partition at one time: the start and end of its log, and the group's ``position`` (or ``None``).

    ``is_unread``: whether the group had unread messages. ``read_to``: the end of the messages that were read. It is
    greater than the position if only control records follow, but less than the offset of messages deleted unread.
    ``is_open``: whether an open transaction had written after the end.
    """

    time_ms: int
    first: int
    end: int
    position: int | None
    is_unread: bool
    read_to: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition of a group. ``first``, ``end``: the current first offset and end of its log. ``commits``: ordered
    by time.

    ``unread_since_ms``: the timestamp of the oldest unread message, or ``None`` if all messages are read. Offsets alone
    do not show this, because control records also have offsets. ``retention_ms``: the retention time, or ``None`` if
    unlimited. ``is_size_limited``: whether the topic limits its size. ``scans``: earlier scans, ordered by time.
    ``written_end``: the end including open transactions, or ``None`` if it equals ``end``. ``is_assigned``: whether a
    live member reads the partition, or ``None`` during a rebalance. ``is_offline``: the partition has no leader, so its
    log is unknown.
    """

    first: int
    end: int
    commits: tuple[Commit, ...] = ()
    unread_since_ms: int | None = None
    retention_ms: int | None = None
    is_size_limited: bool = False
    scans: tuple[LogScan, ...] = ()
    written_end: int | None = None
    is_assigned: bool | None = True
    is_offline: bool = False


@dataclass(frozen=True, slots=True)
class LagVerdict:
    """The verdict on a partition or a group. ``messages``: unread offsets. ``seconds``: the age of the oldest message.

    ``deleted``: messages that retention deleted unread. ``headroom_seconds``: the time until retention deletes the
    oldest unread message, or ``None`` if all messages are read or no deletion is expected. ``completeness``: the known
    fraction of the window. ``truncated``: the number of committed offsets that the log lost in an unclean election or a
    recreation of the topic. ``lost_in_seconds``: the time until retention deletes an unread message at the group's
    speed in the window; ``None`` also if the group is faster than retention. ``expires_soon``: whether this time is
    short. ``hidden``: the number of offsets that an open transaction hides from consumers of committed messages.
    """

    status: LagStatus
    messages: int
    seconds: float
    deleted: int
    headroom_seconds: float | None
    completeness: float
    truncated: int = 0
    lost_in_seconds: float | None = None
    expires_soon: bool = False
    hidden: int = 0

    @property
    def is_error(self) -> bool:
        """Whether an operator must act now, because messages are lost, will soon be lost, or are not read."""
        return self.status.is_error or self.expires_soon or bool(self.deleted or self.truncated)


def partition_lag(state: PartitionState, now_ms: int, window: LagWindow) -> LagVerdict:
    if state.is_offline:
        return LagVerdict(LagStatus.OFFLINE, 0, 0.0, 0, None, 0.0)
    recent = _recent(state.commits, window)
    position = recent[-1].offset if recent else expected_start(state.first, state.scans)
    is_unread = state.unread_since_ms is not None
    messages = max(0, state.end - max(position, state.first)) if is_unread else 0
    truncated = max(0, position - max(state.end, state.written_end or 0))
    hidden = _hidden(state, now_ms, window)
    has_stopped = is_unread and _has_stopped(state, recent, now_ms, window)
    status = _status(state, recent, now_ms, window) if messages > window.allowed_lag else LagStatus.OK
    seconds = max(0, now_ms - state.unread_since_ms) / 1000 if state.unread_since_ms is not None else 0.0
    removals = _removals(state, position, messages, now_ms) if is_unread else []
    headroom_ms = min((each.in_ms for each in removals), default=None)
    lost_in_ms = _lost_in_ms(removals, 0.0 if has_stopped else _read_per_ms(recent, now_ms))
    return LagVerdict(
        status=LagStatus.WARNING if (truncated or hidden) and status is LagStatus.OK else status,
        messages=messages,
        seconds=seconds,
        deleted=max(0, state.first - _known_read_to(state, position)),
        headroom_seconds=None if headroom_ms is None else headroom_ms / 1000,
        completeness=min(1.0, max(len(recent), len(state.scans)) / window.commits),
        truncated=truncated,
        lost_in_seconds=None if lost_in_ms is None else lost_in_ms / 1000,
        expires_soon=_expires_soon(lost_in_ms, headroom_ms, seconds, window),
        hidden=hidden,
    )


def lost_and_hidden(lag: LagVerdict) -> list[str]:
    """Return one phrase for each kind of message that the group has lost or does not receive."""
    facts = [f"{lag.deleted:,} deleted unread"] if lag.deleted else []
    facts += [f"offsets {lag.truncated:,} beyond the end of the log"] if lag.truncated else []
    return [*facts, f"{lag.hidden:,} offsets hidden by an open transaction"] if lag.hidden else facts


def expected_start(first: int, scans: Sequence[LogScan]) -> int:
    """Return the assumed start offset of a group without commits. It is the end of the log at the first scan, because
    the group can start with new messages. Without a history, or if no member read the partition at that scan, it is
    ``first``.
    """
    return scans[0].end if scans and not scans[0].is_unread else first


def read_to(state: PartitionState) -> int:
    """Return the offset up to which all messages are read. Messages deleted unread count as unread until the group
    commits after them. In the first scan, deleted offsets count as read, because they may be control records."""
    position = state.commits[-1].offset if state.commits else expected_start(state.first, state.scans)
    known = _known_read_to(state, position)
    is_lost = bool(state.scans) and state.first > known
    return known if state.unread_since_ms is not None or is_lost else max(known, state.end)


def group_lag(partitions: Iterable[LagVerdict]) -> LagVerdict:
    """Combine the verdicts: a group has the status of its worst partition; a group without partitions is OK."""
    parts = list(partitions)
    order = list(LagStatus)
    rooms = [each.headroom_seconds for each in parts if each.headroom_seconds is not None]
    losses = [each.lost_in_seconds for each in parts if each.lost_in_seconds is not None]
    return LagVerdict(
        status=max((each.status for each in parts), key=order.index, default=LagStatus.OK),
        messages=sum(each.messages for each in parts),
        seconds=max((each.seconds for each in parts), default=0.0),
        deleted=sum(each.deleted for each in parts),
        headroom_seconds=min(rooms, default=None),
        completeness=min((each.completeness for each in parts), default=1.0),
        truncated=sum(each.truncated for each in parts),
        lost_in_seconds=min(losses, default=None),
        expires_soon=any(each.expires_soon for each in parts),
        hidden=sum(each.hidden for each in parts),
    )


def _hidden(state: PartitionState, now_ms: int, window: LagWindow) -> int:
    """Return the number of offsets after the last stable offset if a transaction has been open for longer than the
    window. The oldest open transaction starts at the last stable offset, so scans with the same end have seen the same
    transaction. Timestamps are not used, because a mirror copies them."""
    open_ms = [scan.time_ms for scan in state.scans if scan.is_open and scan.end == state.end]
    if state.written_end is None or not open_ms or now_ms - open_ms[0] <= window.seconds * 1000:
        return 0
    return state.written_end - state.end


def _recent(commits: Sequence[Commit], window: LagWindow) -> Sequence[Commit]:
    """Return the commits of the window, without commits before a pause far longer than any other pause. Otherwise, a
    consumer that starts after a weekend and fails would get a verdict only after another weekend. A consumer that reads
    in bursts has several long pauses, and keeps all its commits.
    """
    recent = commits[-window.commits :]
    gaps = [later.time_ms - earlier.time_ms for earlier, later in pairwise(recent)]
    others = sorted(gaps)[:-1] or gaps
    usual_ms = max([window.seconds * 1000, *others])
    pauses = [number for number, gap in enumerate(gaps, 1) if gap > _LONG_PAUSE * usual_ms]
    return recent[max(pauses, default=0) :]


def _status(state: PartitionState, recent: Sequence[Commit], now_ms: int, window: LagWindow) -> LagStatus:
    """Return the status of a partition with unread messages. STOP takes precedence over all other problems."""
    if _has_stopped(state, recent, now_ms, window):
        return LagStatus.STOP
    if not recent:
        return LagStatus.OK
    if _has_gone_back(state.commits[-window.commits :]):
        return LagStatus.REWIND
    if any(commit.lag == 0 for commit in recent) or not _is_long_enough(recent, window):
        return LagStatus.OK
    if all(commit.offset == recent[0].offset for commit in recent):
        return LagStatus.STALL
    return LagStatus.WARNING if _never_falls(recent) and not _is_in_pace(state, recent, now_ms) else LagStatus.OK


def _has_stopped(state: PartitionState, recent: Sequence[Commit], now_ms: int, window: LagWindow) -> bool:
    """Return whether there was no commit for longer than the window although there were always unread messages.

    A consumer that has read all messages may be silent, so the time counts from the first unread message. The producer
    sets this message's timestamp: a timestamp in the future is ignored, and a timestamp before the last scan with
    nothing unread is replaced with the time of that scan.
    """
    unread_since = state.unread_since_ms
    began = [commit.time_ms for commit in recent[-1:]]
    began += [scan.time_ms for scan in state.scans if not scan.is_unread]
    if unread_since is not None and unread_since <= now_ms:
        began.append(unread_since)
    span_ms = max(window.seconds * 1000, recent[-1].time_ms - recent[0].time_ms if recent else 0)
    return bool(began) and now_ms - max(began) > span_ms


def _has_gone_back(commits: Sequence[Commit]) -> bool:
    """Return whether the last offset is lower than an earlier one; a group that reaches that offset again has
    recovered."""
    return commits[-1].offset < max(commit.offset for commit in commits)


def _never_falls(recent: Sequence[Commit]) -> bool:
    """Return whether the lag never fell. A consumer with a constant lag of at most the messages read within the window
    keeps pace."""
    read, behind = recent[-1].offset - recent[0].offset, recent[-1].lag
    falls = any(later.lag < earlier.lag for earlier, later in pairwise(recent))
    return not falls and (behind > recent[0].lag or behind > read)


def _is_in_pace(state: PartitionState, recent: Sequence[Commit], now_ms: int) -> bool:
    """Return whether the oldest unread message is younger than the longest interval between two commits; the group has
    then read all messages that existed at its second-to-last commit. A timestamp in the future is ignored."""
    longest_ms = max(later.time_ms - earlier.time_ms for earlier, later in pairwise(recent))
    return state.unread_since_ms is not None and 0 <= now_ms - state.unread_since_ms <= longest_ms


def _is_long_enough(recent: Sequence[Commit], window: LagWindow) -> bool:
    return len(recent) > 1 and recent[-1].time_ms - recent[0].time_ms >= window.seconds * 1000


def _known_read_to(state: PartitionState, position: int) -> int:
    """Return ``read_to`` of the last scan, or the position if there is no scan or the group was rewound."""
    last = state.scans[-1] if state.scans else None
    if last is None or last.position is None or last.position > position:
        return position
    return max(position, last.read_to)


_Seen = tuple[int, int, int]  # time, start and end of a log


@dataclass(frozen=True, slots=True)
class _Removal:
    """The minimum time until retention reaches the position, and the speed of retention in offsets per millisecond."""

    in_ms: float
    per_ms: float


def _removals(state: PartitionState, position: int, messages: int, now_ms: int) -> list[_Removal]:
    """Return the expected deletions by time and by size. Because brokers delete whole segments, they can happen
    later."""
    found = []
    if state.retention_ms is not None and state.unread_since_ms is not None:
        age_ms = max(1, now_ms - state.unread_since_ms)
        in_ms = max(0, state.unread_since_ms + state.retention_ms - now_ms)
        found.append(_Removal(in_ms, messages / age_ms))
    by_size = _removal_by_size(state, position, now_ms) if state.is_size_limited else None
    return found if by_size is None else [*found, by_size]


def _removal_by_size(state: PartitionState, position: int, now_ms: int) -> _Removal | None:
    """Return the time until the log's start reaches the position at its observed speed. The start moves by whole
    segments, so the time since its last move is subtracted."""
    seen = [*((scan.time_ms, scan.first, scan.end) for scan in state.scans), (now_ms, state.first, state.end)]
    moves = [(before, after) for before, after in pairwise(seen) if after[1] > before[1]]
    per_ms = _start_per_ms(moves, state.end, now_ms) if moves else 0.0
    if not per_ms:
        return None
    (_, former, _), (moved_ms, first, _) = moves[-1]
    since_ms = min(now_ms - moved_ms, (first - former) / per_ms)
    return _Removal(max(0.0, max(0, position - state.first) / per_ms - since_ms), per_ms)


def _start_per_ms(moves: Sequence[tuple[_Seen, _Seen]], end: int, now_ms: int) -> float:
    """Return the greatest average speed of the log's start between any of its moves and the last one. Therefore, a
    pause before a burst does not lower the result, but an unusually long time without a move does. ``moves``: the scans
    before and after each move."""
    last_ms, last, _ = moves[-1][1]
    speeds = []
    for later, (_, (time_ms, first, _)) in enumerate(reversed(moves[:-1]), 1):
        usual_ms = (last_ms - time_ms) / later
        speeds.append((last - first) / (max(last_ms, now_ms - usual_ms) - time_ms))
    if speeds:
        return max(speeds)
    # One move shows no speed, but a full log loses as many offsets at its start as it gains at its end.
    time_ms, _, former_end = moves[0][0]
    return max(0, end - former_end) / max(1, now_ms - time_ms)


def _read_per_ms(recent: Sequence[Commit], now_ms: int) -> float:
    """Return the group's speed in offsets per millisecond, from the first commit of the window until now."""
    if len(recent) < 2:
        return 0.0
    return max(0, recent[-1].offset - recent[0].offset) / max(1, now_ms - recent[0].time_ms)


def _lost_in_ms(removals: Iterable[_Removal], read_per_ms: float) -> float | None:
    """Return the time until the first deletion overtakes a group with this speed, or ``None`` if no deletion does."""
    times = [each.in_ms / (1 - read_per_ms / each.per_ms) for each in removals if each.per_ms > read_per_ms]
    return min(times, default=None)


def _expires_soon(lost_in_ms: float | None, headroom_ms: float | None, age_seconds: float, window: LagWindow) -> bool:
    if lost_in_ms is None or headroom_ms is None:
        return False
    return lost_in_ms <= window.least_headroom * (age_seconds * 1000 + headroom_ms)
