# SPDX-License-Identifier: Apache-2.0
"""Compares two logs of a partition, message by message: keys, values, headers and timestamps.

Both logs are read in parallel, and only messages without a counterpart are kept in memory, so a log may have any size.
Messages that one cluster has deleted, and messages not copied yet, are counted separately from differences.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal, NamedTuple

from monasca_common.kafka import Message
from monasca_common.kafka.message import MESSAGE_ID_HEADER, TopicPartition

_MOST_UNMATCHED = 500_000  # per partition, messages without a counterpart; they use 150 MB of memory
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
class ComparedPartition:
    """A partition to compare. Messages at or after the source's offset ``copied`` may be missing in the target."""

    partition: TopicPartition
    copied: int
    source_lost_its_beginning: bool = False
    target_lost_its_beginning: bool = False


@dataclass(slots=True)
class PartitionComparison:
    """The result for one partition. ``not_compared``: the reason if it was not compared, otherwise empty. ``expired``:
    the number of messages that one cluster has already deleted. ``behind``: the number of messages not copied yet."""

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


def compare_logs(
    compared: ComparedPartition, source: Iterable[Message], target: Iterable[Message]
) -> PartitionComparison:
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
                f"more than {_MOST_UNMATCHED:,} messages have no counterpart: use --since with a time from which both "
                "clusters have all messages"
            )
            break
    found.source, found.target = sides[0].count, sides[1].count
    _explain(found, compared, *sides)
    return found


class _Unmatched(NamedTuple):
    """A message without a counterpart. ``digests``: one digest per field of `_FIELDS`."""

    offset: int
    message_id: bytes | None
    digests: tuple[bytes, ...]


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
        """Remove a message with these digests, and return whether there was one."""
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


def _explain(found: PartitionComparison, compared: ComparedPartition, source: _Side, target: _Side) -> None:
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
    """Return one digest per field of `_FIELDS`; a copy must preserve these fields."""
    headers = [part for name, value in message.headers for part in (name.encode(), value)]
    time = struct.pack(">q", message.timestamp_ms or 0)
    return _digest([message.key]), _digest([message.value]), _digest(headers), _digest([time])


def _digest(parts: Iterable[bytes | None]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.digest()
