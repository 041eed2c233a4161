# SPDX-License-Identifier: Apache-2.0
"""Compares two logs of a partition, message by message: keys, values, headers and timestamps.

Both logs are read in parallel, and only messages without a counterpart are kept, so a log may have any size. Messages
that one cluster has deleted, and messages not copied yet, are counted separately from differences. In compacted logs,
only the last message of each key is compared, because each cluster removes older messages at different times. A key
whose last message is a tombstone counts as absent, whether or not the tombstone is already removed.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal, NamedTuple

from monasca_common.kafka import Message
from monasca_common.kafka.message import MESSAGE_ID_HEADER, TopicPartition

_MOST_UNMATCHED = 500_000  # messages of one partition without a counterpart; they use 150 MB of memory
_MOST_KEYS = 2_000_000  # keys of one partition; they use 600 MB of memory for both clusters
_FIELDS = ("key", "value", "headers", "timestamp_ms")


@dataclass(frozen=True, slots=True)
class MessageDifference:
    """A difference. ``missing``: only in the source. ``extra``: only in the target, or more often there than in the
    source.
    ``altered``: in both with the same id, but with different ``fields``."""

    kind: Literal["missing", "extra", "altered"]
    source_offset: int | None
    target_offset: int | None
    message_id: bytes | None
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """The offsets of one partition to compare. Messages from ``copied`` on may be missing in the target."""

    partition: TopicPartition
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    copied: int
    source_lost_its_beginning: bool = False
    target_lost_its_beginning: bool = False


@dataclass(slots=True)
class PartitionComparison:
    """The result for one partition. ``not_compared``: the reason if it was not compared, otherwise empty. ``expired``:
    the number of messages that one cluster has already deleted. ``behind``: the number of messages not copied yet. For
    a compacted topic, these numbers count keys."""

    partition: TopicPartition
    source: int = 0
    target: int = 0
    equal: int = 0
    expired: int = 0
    behind: int = 0
    not_compared: str = ""
    differences: list[MessageDifference] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(each.kind == kind for each in self.differences)


def compare_logs(compared: ComparedRange, source: Iterable[Message], target: Iterable[Message]) -> PartitionComparison:
    """Compare two logs of one partition."""
    found = PartitionComparison(compared.partition)
    sides = _Side(), _Side()
    for pair in zip_longest(source, target):
        for message, own, other in zip(pair, sides, reversed(sides), strict=True):
            if message is None:
                continue
            own.count += 1
            digests = _digests(message)
            if other.take(digests):
                found.equal += 1
                own.first_matched = _first(own.first_matched, message.offset)
            else:
                own.keep(_Unmatched(message.offset, _own_id(message), digests))
        if len(sides[0]) + len(sides[1]) > _MOST_UNMATCHED:
            found.not_compared = (
                f"more than {_MOST_UNMATCHED:,} messages have no counterpart: with --since, compare from a time from "
                "which both clusters have everything"
            )
            break
    found.source, found.target = sides[0].count, sides[1].count
    _explain(found, compared, *sides)
    return found


def compare_latest(
    compared: ComparedRange,
    source: Iterable[Message],
    target: Iterable[Message],
    *,
    since_ms: int | None = None,
    rewritten: Callable[[ComparedRange], Collection[bytes | None]] = lambda _: (),
) -> PartitionComparison:
    """Compare two compacted logs of one partition. ``since_ms``: compare only keys whose last message is not older.
    ``rewritten``: called after both logs are read; the keys that it returns count as not copied yet."""
    found = PartitionComparison(compared.partition)
    own, other = _last_of_keys(source, since_ms), _last_of_keys(target, since_ms)
    if own is None or other is None:
        found.not_compared = f"it has more than {_MOST_KEYS:,} keys: limit the comparison with --since"
        return found
    pending = {key for key, last in own.items() if last.offset >= compared.copied}
    pending.update(_digest([key]) for key in rewritten(compared))
    sides = tuple({key: last for key, last in lasts.items() if not last.is_tombstone} for lasts in (own, other))
    found.source, found.target = map(len, sides)
    firsts = [min((side[key].offset for key in sides[0].keys() & sides[1].keys()), default=None) for side in sides]
    for key in sorted(sides[0].keys() | sides[1].keys()):
        last, copy = sides[0].get(key), sides[1].get(key)
        if last is not None and copy is not None and last.digests == copy.digests:
            found.equal += 1
        elif key in pending:
            found.behind += 1
        elif last is not None and copy is not None:
            found.differences.append(_altered(last, copy))
        elif _has_expired(compared, last, copy, firsts):
            found.expired += 1
        elif last is not None:
            found.differences.append(MessageDifference("missing", last.offset, None, last.message_id))
        elif copy is not None:
            found.differences.append(MessageDifference("extra", None, copy.offset, copy.message_id))
    return found


def _has_expired(
    compared: ComparedRange, last: _Unmatched | None, copy: _Unmatched | None, firsts: list[int | None]
) -> bool:
    """Return whether the other cluster has deleted the message. ``firsts``: for each of the two logs, the offset of its
    first message whose key is also in the other log."""
    if last is not None:
        return compared.target_lost_its_beginning and _is_before(last, firsts[0])
    return copy is not None and compared.source_lost_its_beginning and _is_before(copy, firsts[1])


def _last_of_keys(messages: Iterable[Message], since_ms: int | None) -> dict[bytes, _Unmatched] | None:
    """Return the last message of each key by the key's digest, or ``None`` if there are too many keys."""
    lasts: dict[bytes, tuple[_Unmatched, int]] = {}
    for message in messages:
        digests = _digests(message)
        last = _Unmatched(message.offset, _own_id(message), digests, message.value is None)
        lasts[digests[0]] = last, message.timestamp_ms or 0
        if len(lasts) > _MOST_KEYS:
            return None
    return {key: last for key, (last, at_ms) in lasts.items() if since_ms is None or at_ms >= since_ms}


class _Unmatched(NamedTuple):
    """A message without a counterpart. ``digests``: one digest per field of `_FIELDS`."""

    offset: int
    message_id: bytes | None
    digests: tuple[bytes, ...]
    is_tombstone: bool = False


class _Side:
    """The messages of one log that have no counterpart so far."""

    def __init__(self) -> None:
        self.count = 0
        self.first_matched: int | None = None
        self._by_digests: dict[tuple[bytes, ...], deque[_Unmatched]] = defaultdict(deque)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def keep(self, message: _Unmatched) -> None:
        self._by_digests[message.digests].append(message)
        self._size += 1

    def take(self, digests: tuple[bytes, ...]) -> bool:
        """Remove a message with these digests. Return whether there was one."""
        alike = self._by_digests.get(digests)
        if not alike:
            return False
        self.first_matched = _first(self.first_matched, alike.popleft().offset)
        if not alike:
            del self._by_digests[digests]
        self._size -= 1
        return True

    def left(self) -> list[_Unmatched]:
        return sorted(message for alike in self._by_digests.values() for message in alike)


def _explain(found: PartitionComparison, compared: ComparedRange, source: _Side, target: _Side) -> None:
    """Classify the messages without a counterpart."""
    missing, extra = [], []
    for message in source.left():
        if message.offset >= compared.copied:
            found.behind += 1
        elif compared.target_lost_its_beginning and _is_before(message, source.first_matched):
            found.expired += 1
        else:
            missing.append(message)
    for message in target.left():
        if compared.source_lost_its_beginning and _is_before(message, target.first_matched):
            found.expired += 1
        else:
            extra.append(message)
    copies: dict[bytes, deque[_Unmatched]] = defaultdict(deque)
    for message in extra:
        copies[message.message_id or b""].append(message)
    for message in missing:
        if message.message_id and copies[message.message_id]:
            found.differences.append(_altered(message, copies[message.message_id].popleft()))
        else:
            found.differences.append(MessageDifference("missing", message.offset, None, message.message_id))
    for message in sorted(message for alike in copies.values() for message in alike):
        found.differences.append(MessageDifference("extra", None, message.offset, message.message_id))


def _altered(message: _Unmatched, copy: _Unmatched) -> MessageDifference:
    compared = zip(_FIELDS, message.digests, copy.digests, strict=True)
    fields = tuple(name for name, one, other in compared if one != other)
    return MessageDifference("altered", message.offset, copy.offset, message.message_id, fields)


def _is_before(message: _Unmatched, first_matched: int | None) -> bool:
    return first_matched is None or message.offset < first_matched


def _first(known: int | None, offset: int) -> int:
    return offset if known is None else min(known, offset)


def _own_id(message: Message) -> bytes | None:
    return next((value for name, value in message.headers if name == MESSAGE_ID_HEADER and value), None)


def _digests(message: Message) -> tuple[bytes, ...]:
    """Return one digest per field of `_FIELDS`; a copy must keep these fields."""
    headers = [part for name, value in message.headers for part in (name.encode(), value)]
    time = struct.pack(">q", message.timestamp_ms or 0)
    return _digest([message.key]), _digest([message.value]), _digest(headers), _digest([time])


def _digest(parts: Iterable[bytes | None]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.digest()
