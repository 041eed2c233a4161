# SPDX-License-Identifier: Apache-2.0
"""The keys of rows other than metrics: message ids, which must fit into an index."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from monasca_common.kafka.message import MADE_ID_BYTES, MESSAGE_ID_HEADER, Headers, TopicPartition

_MAX_ID_BYTES = 255


def message_key(headers: Headers, topic: str, partition: int, offset: int) -> bytes:
    """Return the key of a message: its id, as in `Message.message_id`.

    PostgreSQL limits an index entry to 2.7 kB, so the key is the SHA-256 (32 bytes) of an id longer than 255 bytes.
    """
    return message_keys([headers], TopicPartition(topic, partition), [offset])[0]


def message_keys(headers: Sequence[Headers], partition: TopicPartition, offsets: Sequence[int]) -> list[bytes]:
    """Return the `message_key` of each message of a partition."""
    prefix = "{}/{}/".format(*partition)
    if not any(headers):
        return [f"{prefix}{offset}".encode() for offset in offsets]
    return [_own_key(each) or f"{prefix}{offset}".encode() for each, offset in zip(headers, offsets, strict=True)]


def _own_key(headers: Headers) -> bytes:
    for name, value in headers:
        if name == MESSAGE_ID_HEADER and value:
            return value if len(value) <= _MAX_ID_BYTES else hashlib.sha256(value).digest()
    return b""


def row_id(message_key: bytes, index: int) -> bytes:
    """Return the key of one row of a message that may have several rows."""
    return b"%b/%d" % (message_key, index)


def by_id(headers: Sequence[Headers], untimed: Collection[int], dead: Sequence[bool] = ()) -> Sequence[bool]:
    """Return `Rows.by_id` for rows whose messages have these headers. ``untimed``: see `Decoded.untimed`. ``dead``:
    whether the message of each row is a dead letter; empty if each message has one row.

    A repeated message has the same id if the caller chose it, for example from an ``Idempotency-Key``; an id created by
    a producer belongs to a single message with a single time. If messages have several rows, some rows of a dead letter
    are stored before its replay, which has the same id and another time. A message without an id needs to be a dead
    letter, because a recreated topic has the same offsets.
    """
    ignored = (0,) if dead else (0, MADE_ID_BYTES)  # sizes of ids
    own = {each for each in untimed if (dead and dead[each]) or len(_own_key(headers[each])) not in ignored}
    return [place in own for place in range(len(headers))] if own else ()
