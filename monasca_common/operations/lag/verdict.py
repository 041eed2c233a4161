# SPDX-License-Identifier: Apache-2.0
"""The verdict on a consumer: a pure function of its recent commits, of the log that it reads, and of the time.

The number of unread messages alone says little: a large lag that falls is healthy, a lag of one that stays for an
hour is not. So the verdict looks at how commits and lag moved over a window. Times are milliseconds since 1970.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

# A pause is long when it is so many times longer than the window's time, and than the usual time between two commits.
_LONG_PAUSE = 10


class LagStatus(enum.Enum):
    """From the best to the worst. The value says what it means."""

    OK = "it keeps up, or it catches up"
    WARNING = (
        "it commits and moves on, but its lag never falls; or its log ends before its offset; or a transaction that "
        "stays open hides messages"
    )
    STALL = "it commits again and again, always the same offset"
    STOP = "it leaves messages unread and does not commit"
    REWIND = "it went back to an earlier offset"
    OFFLINE = "a partition has no leader, so neither readers nor this check can reach it"

    @property
    def is_error(self) -> bool:
        return self not in (LagStatus.OK, LagStatus.WARNING)


@dataclass(frozen=True, slots=True)
class LagWindow:
    """``commits``: how many make a complete window. ``seconds``: how long a consumer may take before it is judged.
    ``least_headroom``: 0 to 1; messages expire soon when no more than this part of the time that they are kept is left
    until one of them is deleted unread. ``allowed_lag``: unread messages in a partition that are always OK.
    """

    commits: int = 10
    seconds: float = 60.0
    least_headroom: float = 0.25
    allowed_lag: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """``offset``: the next to read. ``end``: where the log ended when the offset was committed."""

    time_ms: int
    offset: int
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class LogScan:
    """What was seen of a partition at one time: where its log began and ended, and the group's ``position`` (``None``:
    it had committed none). ``is_unread``: whether a message was left for the group to read. ``read_to``: up to where
    nothing was left to read: beyond the position where only markers of transactions follow it, and not beyond what was
    deleted before it was read. ``is_open``: whether an open transaction had written after the end.
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
    """One partition of a group. ``first`` and ``end``: of its log now. ``commits``: in the order of their times.

    ``unread_since_ms``: Kafka's timestamp of the oldest unread message; ``None`` where nothing is unread. Offsets do
    not tell that: the markers of transactions have offsets, and nobody ever reads them.
    ``retention_ms``: how long the topic keeps messages; ``None`` where time removes nothing.
    ``is_size_limited``: whether it removes what is beyond a size. ``looks``: earlier ones, in the order of their times;
    none where there is no history. ``written_end``: where the log ends with what unfinished transactions have written;
    ``None``: at ``end``. ``is_assigned``: whether a live member reads it; ``None``: not known during a rebalance.
    ``is_offline``: it has no leader, so its log is not known.
    """

    first: int
    end: int
    commits: tuple[Commit, ...] = ()
    unread_since_ms: int | None = None
    retention_ms: int | None = None
    is_size_limited: bool = False
    looks: tuple[LogScan, ...] = ()
    written_end: int | None = None
    is_assigned: bool | None = True
    is_offline: bool = False


@dataclass(frozen=True, slots=True)
class LagVerdict:
    """On a partition, or on a group. ``messages``: unread ones, as a difference of offsets. ``seconds``: the age of the
    oldest of them.

    ``deleted``: messages that retention removed before they were read. ``headroom_seconds``: how long until it removes
    the oldest unread one if nobody reads it; ``None`` where nothing is unread, or nothing is known to be removed.
    ``completeness``: 0 to 1, how much of the window is known. ``truncated``: offsets that the group has committed and
    the log no longer has: an unclean election threw messages away, or the topic was recreated. ``lost_in_seconds``:
    how long until retention removes an unread message if the group reads on as fast as in the window; ``None`` also
    where it reads faster than retention follows. ``expires_soon``: whether that is near. ``hidden``: offsets that no
    reader of committed messages gets, because a transaction before them stays open.
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
        """Whether somebody has to do something now, lest messages are lost, or because they are."""
        return self.status.is_error or self.expires_soon or bool(self.deleted or self.truncated)


def partition_lag(state: PartitionState, now_ms: int, window: LagWindow) -> LagVerdict:
    if state.is_offline:
        return LagVerdict(LagStatus.OFFLINE, 0, 0.0, 0, None, 0.0)
    recent = _recent(state.commits, window)
    position = recent[-1].offset if recent else expected_start(state.first, state.looks)
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
        completeness=min(1.0, max(len(recent), len(state.looks)) / window.commits),
        truncated=truncated,
        lost_in_seconds=None if lost_in_ms is None else lost_in_ms / 1000,
        expires_soon=_expires_soon(lost_in_ms, headroom_ms, seconds, window),
        hidden=hidden,
    )


def expected_start(first: int, looks: Sequence[LogScan]) -> int:
    """Where a group that has committed nothing begins: at the end that its log had when the group was first seen,
    because a group that asks for the latest messages reads none of the earlier ones; at ``first`` without a history,
    and if no member read the partition then."""
    return looks[0].end if looks and not looks[0].is_unread else first


def read_to(state: PartitionState) -> int:
    """Up to where nothing is left to read now. What was deleted unread stays unread until the group commits beyond it,
    also where the rest of the log is empty. At a first look nobody knows whether what lies between were messages or
    markers of transactions."""
    position = state.commits[-1].offset if state.commits else expected_start(state.first, state.looks)
    known = _known_read_to(state, position)
    is_lost = bool(state.looks) and state.first > known
    return known if state.unread_since_ms is not None or is_lost else max(known, state.end)


def group_lag(partitions: Iterable[LagVerdict]) -> LagVerdict:
    """A group is as well as its worst partition; one without partitions is not late."""
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
    """How many offsets lie after the end for readers of what is committed, where a transaction has been open for longer
    than the window's time. That end is where the oldest open transaction begins, so looks at one end have seen the same
    transaction. Timestamps do not count: a copy has those of its originals."""
    open_ms = [look.time_ms for look in state.looks if look.is_open and look.end == state.end]
    if state.written_end is None or not open_ms or now_ms - open_ms[0] <= window.seconds * 1000:
        return 0
    return state.written_end - state.end


def _recent(commits: Sequence[Commit], window: LagWindow) -> Sequence[Commit]:
    """Those that the window is made of: none from before a pause that is far longer than any other. Otherwise one that
    reads again after a weekend, and dies, would have the weekend's time until it is judged. One that reads in bursts
    has several long pauses, and keeps them.
    """
    recent = commits[-window.commits :]
    gaps = [later.time_ms - earlier.time_ms for earlier, later in pairwise(recent)]
    others = sorted(gaps)[:-1] or gaps
    usual_ms = max([window.seconds * 1000, *others])
    pauses = [number for number, gap in enumerate(gaps, 1) if gap > _LONG_PAUSE * usual_ms]
    return recent[max(pauses, default=0) :]


def _status(state: PartitionState, recent: Sequence[Commit], now_ms: int, window: LagWindow) -> LagStatus:
    """Of a partition with unread messages. A consumer that stopped has stopped, whatever it did before."""
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
    """No commit for longer than the window spans, although there was something to read throughout.

    A consumer that has read everything may be silent, so the time counts from the arrival of the first unread message.
    Its timestamp is its producer's word: one from the future says nothing, and one from the past does not count from
    before the last look that found nothing unread.
    """
    unread_since = state.unread_since_ms
    began = [commit.time_ms for commit in recent[-1:]]
    began += [look.time_ms for look in state.looks if not look.is_unread]
    if unread_since is not None and unread_since <= now_ms:
        began.append(unread_since)
    span_ms = max(window.seconds * 1000, recent[-1].time_ms - recent[0].time_ms if recent else 0)
    return bool(began) and now_ms - max(began) > span_ms


def _has_gone_back(commits: Sequence[Commit]) -> bool:
    """Its last offset is below one that it had before; one that caught up with it again has recovered."""
    return commits[-1].offset < max(commit.offset for commit in commits)


def _never_falls(recent: Sequence[Commit]) -> bool:
    """A lag that is the same at every commit, and no more than what is read in the time of the window, is that of a
    consumer which keeps pace at a distance."""
    read, behind = recent[-1].offset - recent[0].offset, recent[-1].lag
    falls = any(later.lag < earlier.lag for earlier, later in pairwise(recent))
    return not falls and (behind > recent[0].lag or behind > read)


def _is_in_pace(state: PartitionState, recent: Sequence[Commit], now_ms: int) -> bool:
    """The oldest unread message is younger than the longest time between two commits: the group has read what was
    there at its last commit but one. A timestamp from the future says nothing."""
    longest_ms = max(later.time_ms - earlier.time_ms for earlier, later in pairwise(recent))
    return state.unread_since_ms is not None and 0 <= now_ms - state.unread_since_ms <= longest_ms


def _is_long_enough(recent: Sequence[Commit], window: LagWindow) -> bool:
    return len(recent) > 1 and recent[-1].time_ms - recent[0].time_ms >= window.seconds * 1000


def _known_read_to(state: PartitionState, position: int) -> int:
    """As the last look had it; the position where there is none, or where the group has gone back since."""
    last = state.looks[-1] if state.looks else None
    if last is None or last.position is None or last.position > position:
        return position
    return max(position, last.read_to)


_Seen = tuple[int, int, int]  # of a log: when, its start, its end


@dataclass(frozen=True, slots=True)
class _Removal:
    """How long at least until retention reaches the position, and how many offsets it then goes on by."""

    in_ms: float
    per_ms: float


def _removals(state: PartitionState, position: int, messages: int, now_ms: int) -> list[_Removal]:
    """By time, and by size, as far as they are known. A broker removes whole segments, by the newest message in each,
    so each of them may come later."""
    found = []
    if state.retention_ms is not None and state.unread_since_ms is not None:
        age_ms = max(1, now_ms - state.unread_since_ms)
        in_ms = max(0, state.unread_since_ms + state.retention_ms - now_ms)
        found.append(_Removal(in_ms, messages / age_ms))
    by_size = _removal_by_size(state, position, now_ms) if state.is_size_limited else None
    return found if by_size is None else [*found, by_size]


def _removal_by_size(state: PartitionState, position: int, now_ms: int) -> _Removal | None:
    """How long until the log's start reaches the position at the speed at which it was seen to move. It moves by whole
    segments, so the next move is the nearer the longer ago the last one was."""
    seen = [*((look.time_ms, look.first, look.end) for look in state.looks), (now_ms, state.first, state.end)]
    moves = [(before, after) for before, after in pairwise(seen) if after[1] > before[1]]
    per_ms = _start_per_ms(moves, state.end, now_ms) if moves else 0.0
    if not per_ms:
        return None
    (_, former, _), (moved_ms, first, _) = moves[-1]
    since_ms = min(now_ms - moved_ms, (first - former) / per_ms)
    return _Removal(max(0.0, max(0, position - state.first) / per_ms - since_ms), per_ms)


def _start_per_ms(moves: Sequence[tuple[_Seen, _Seen]], end: int, now_ms: int) -> float:
    """The greatest speed of the log's start from one of its moves to the last: so a burst counts at once, and a pause
    before it hides nothing. That there was no move for longer than usual makes it slower. ``moves``: what was seen
    before and after each."""
    last_ms, last, _ = moves[-1][1]
    speeds = []
    for later, (_, (time_ms, first, _)) in enumerate(reversed(moves[:-1]), 1):
        usual_ms = (last_ms - time_ms) / later
        speeds.append((last - first) / (max(last_ms, now_ms - usual_ms) - time_ms))
    if speeds:
        return max(speeds)
    # One move has no speed. But the log is full, and loses at its start what it gains at its end.
    time_ms, _, former_end = moves[0][0]
    return max(0, end - former_end) / max(1, now_ms - time_ms)


def _read_per_ms(recent: Sequence[Commit], now_ms: int) -> float:
    """How many offsets the group reads, from the window's first commit until now."""
    if len(recent) < 2:
        return 0.0
    return max(0, recent[-1].offset - recent[0].offset) / max(1, now_ms - recent[0].time_ms)


def _lost_in_ms(removals: Iterable[_Removal], read_per_ms: float) -> float | None:
    """When the first removal overtakes a group that reads at this speed; ``None``: none does."""
    times = [each.in_ms / (1 - read_per_ms / each.per_ms) for each in removals if each.per_ms > read_per_ms]
    return min(times, default=None)


def _expires_soon(lost_in_ms: float | None, headroom_ms: float | None, age_seconds: float, window: LagWindow) -> bool:
    if lost_in_ms is None or headroom_ms is None:
        return False
    return lost_in_ms <= window.least_headroom * (age_seconds * 1000 + headroom_ms)
