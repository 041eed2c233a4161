# SPDX-License-Identifier: Apache-2.0
"""Computes the partition of a key with Kafka's hash, so that all clients of a topic agree.

librdkafka computes the partition itself (``partitioner=murmur2_random``). This module is for code without a client: the
memory transport, tests, and services that look up a key.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of Kafka's Java client, unsigned."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ (word >> 24)) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ (value >> 13)) * _MULTIPLIER & _MASK
    return value ^ (value >> 15)


def partition_for(key: bytes, partition_count: int) -> int:
    """Return the partition of ``key`` in a topic of ``partition_count`` partitions, as the Java client does."""
    # Like Java's toPositive(): clear the sign bit instead of taking the absolute value.
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
