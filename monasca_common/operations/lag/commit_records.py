# SPDX-License-Identifier: Apache-2.0
"""Decodes the commits of groups in the topic ``__consumer_offsets``.

Brokers report the last offset of a group, but neither its time nor earlier offsets. The topic contains all commits
until compaction. The format is Kafka's OffsetCommitKey and OffsetCommitValue, versions 0 to 4; records of newer
versions are ignored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from monasca_common.kafka.message import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"

_BYTE, _SHORT, _INT, _LONG = (struct.Struct(f">{each}") for each in "Bhiq")
_KEY_VERSIONS = (0, 1)
_WITH_LEADER_EPOCH, _COMPACT = 3, 4
_LENGTH_BITS = 7


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit. ``offset``: the next offset to read, or ``None`` if the group's offset was deleted."""

    group: str
    partition: TopicPartition
    offset: int | None
    time_ms: int


class _Bytes:
    """Reads values in sequence. Raises `struct.error` or `ValueError` if the record is truncated."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return int(value)

    def text(self, length: int) -> str:
        end = self._at + max(0, length)
        if end > len(self._data):
            raise ValueError("a string exceeds its record")
        value = self._data[self._at : end].decode()
        self._at = end
        return value

    def compact_length(self) -> int:
        """Read a varint, which is the length plus one, and return the length."""
        value = shift = 0
        while True:
            byte = self.number(_BYTE)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - 1
            shift += _LENGTH_BITS


def commit_record(key: bytes | None, value: bytes | None, time_ms: int) -> CommitRecord | None:
    """Return the commit, or ``None`` for records about members and records of unknown versions. ``time_ms``: the
    record's timestamp, used if the offset was deleted.
    """
    try:
        return _read(key or b"", value, time_ms)
    except (struct.error, ValueError):
        return None


def _read(key: bytes, value: bytes | None, time_ms: int) -> CommitRecord | None:
    names = _Bytes(key)
    if names.number(_SHORT) not in _KEY_VERSIONS:
        return None
    group = names.text(names.number(_SHORT))
    partition = TopicPartition(names.text(names.number(_SHORT)), names.number(_INT))
    if value is None:
        return CommitRecord(group, partition, None, time_ms)
    facts = _Bytes(value)
    version = facts.number(_SHORT)
    if version > _COMPACT:
        return None
    offset = facts.number(_LONG)
    if version >= _WITH_LEADER_EPOCH:
        facts.number(_INT)
    facts.text(facts.compact_length() if version == _COMPACT else facts.number(_SHORT))  # the consumer's metadata
    return CommitRecord(group, partition, offset, facts.number(_LONG))
