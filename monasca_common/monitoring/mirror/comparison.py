# SPDX-License-Identifier: Apache-2.0
"""Compares what a mirror has copied with its source, message by message: keys, values, headers and timestamps.

Both logs are read side by side, and only messages without a counterpart are kept, so that the size of a log does not
matter. What the two clusters deleted since, and what is not copied yet, is told apart from what is wrong.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal, NamedTuple

from monasca_common.kafka import Admin, ConfigurationError, Message
from monasca_common.kafka.message import MESSAGE_ID_HEADER, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.monitoring.log_reading import LogReader
from monasca_common.monitoring.mirror.positions import MirrorPosition, read_positions
from monasca_common.monitoring.mirror.settings import MirrorSettings

_MOST_UNMATCHED = 500_000  # messages of one partition without a counterpart, in 150 MB of memory
_PATIENCE_SECONDS = 60.0
_FIELDS = ("key", "value", "headers", "timestamp_ms")


@dataclass(frozen=True, slots=True)
class MessageDifference:
    """``missing``: in the source alone; ``extra``: in the target alone, or there once more; ``altered``: in both under
    one id, and ``fields`` are not the same."""

    kind: Literal["missing", "extra", "altered"]
    source_offset: int | None
    target_offset: int | None
    message_id: bytes | None
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """What is to be compared of one partition. Messages from ``copied`` on may be missing in the target."""

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
    """``not_compared``: why it was not, empty if it was; ``expired``: messages that one cluster has deleted by now;
    ``behind``: messages that are not copied yet."""

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


class MirrorComparison:
    """What the mirror of these settings copied, against its source. Raises `ConfigurationError`, `TransportError`."""

    def __init__(self, settings: MirrorSettings, source: Admin, target: Admin) -> None:
        self._settings = settings
        self._source = source
        self._target = target

    def ranges(self, topics: Iterable[str] = (), since_ms: int | None = None) -> list[ComparedRange]:
        """Of these topics, or all. ``since_ms``: only messages whose timestamps are not older.

        The ends are taken one after the other: what is copied, the target, the source. So each message that is read in
        the target is also read in the source, however fast the mirror copies meanwhile.
        """
        known = self._positions(set(topics))
        partitions = list(known)
        ends = self._target.end_offsets(partitions)
        source_ends = self._source.end_offsets(partitions)
        firsts, source_firsts = self._target.first_offsets(partitions), self._source.first_offsets(partitions)
        starts = _starts(self._target, firsts, ends, since_ms)
        source_starts = _starts(self._source, source_firsts, source_ends, since_ms)
        return [
            ComparedRange(
                partition,
                max(source_starts[partition], position.start),
                source_ends[partition],
                starts[partition],
                ends[partition],
                position.next_offset,
                source_lost_its_beginning=source_firsts[partition] > position.start,
                target_lost_its_beginning=firsts[partition] > 0,
            )
            for partition, position in sorted(known.items())
        ]

    def _positions(self, wanted: set[str]) -> dict[TopicPartition, MirrorPosition]:
        name = self._settings.name
        everything = read_positions(self._target, self._settings.target)
        counts = self._target.partition_counts()
        there = self._source.partition_counts()
        own = {
            partition: position
            for (mirror, partition), position in everything.items()
            if mirror == name and partition.topic in counts and partition.topic in there
        }
        missing = sorted(wanted - {partition.topic for partition in own})
        if missing or not own:
            raise ConfigurationError(
                f"mirror {name!r} has copied {'nothing' if not own else f'no topic {missing[0]!r}'}: correct name or "
                "topics, or run it first"
            )
        return {partition: at for partition, at in own.items() if partition.topic in wanted or not wanted}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Those of which a cluster deletes messages in the middle."""
        names = sorted(set(topics))
        configs = (self._source.topic_configs(names), self._target.topic_configs(names))
        return {name for each in configs for name, config in each.items() if "compact" in config["cleanup.policy"]}

    def compare(self, compared: ComparedRange, since_ms: int | None = None) -> PartitionComparison:
        partition = compared.partition
        source = _read(self._settings.source, partition, compared.source_start, compared.source_end)
        target = _read(self._settings.target, partition, compared.target_start, compared.target_end)
        return compare_logs(compared, _since(source, since_ms), _since(target, since_ms))


def compare_logs(compared: ComparedRange, source: Iterable[Message], target: Iterable[Message]) -> PartitionComparison:
    """The comparison of two logs of one partition."""
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
                f"more than {_MOST_UNMATCHED:,} messages have no counterpart: compare since a time from which on both "
                "clusters have everything"
            )
            break
    found.source, found.target = sides[0].count, sides[1].count
    _explain(found, compared, *sides)
    return found


class _Unmatched(NamedTuple):
    """What is kept of a message without a counterpart. ``digests``: one for each of `_FIELDS`."""

    offset: int
    message_id: bytes | None
    digests: tuple[bytes, ...]


class _Side:
    """The messages of one log that have no counterpart yet."""

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
        """Whether the counterpart was here; it is not any more."""
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
    """What the messages without a counterpart mean."""
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
    """Of everything that a copy must keep: one for each of `_FIELDS`."""
    headers = [part for name, value in message.headers for part in (name.encode(), value)]
    time = struct.pack(">q", message.timestamp_ms or 0)
    return _digest([message.key]), _digest([message.value]), _digest(headers), _digest([time])


def _digest(parts: Iterable[bytes | None]) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.digest()


def _starts(
    admin: Admin, firsts: dict[TopicPartition, int], ends: dict[TopicPartition, int], since_ms: int | None
) -> dict[TopicPartition, int]:
    if since_ms is None:
        return firsts
    found = admin.offsets_for_times(dict.fromkeys(firsts, since_ms))
    return {partition: ends[partition] if offset is None else offset for partition, offset in found.items()}


def _read(connection: ConnectionSettings, partition: TopicPartition, start: int, end: int) -> Iterator[Message]:
    reader = LogReader(connection, patience_seconds=_PATIENCE_SECONDS)
    return reader.messages({partition: start}, {partition: end})


def _since(messages: Iterable[Message], since_ms: int | None) -> Iterator[Message]:
    return (message for message in messages if since_ms is None or (message.timestamp_ms or 0) >= since_ms)
