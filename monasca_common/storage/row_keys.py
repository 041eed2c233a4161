# SPDX-License-Identifier: Apache-2.0
"""The key of the row of a message that is not a metric: its id, which must fit into an index."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from monasca_common.kafka.message import MADE_ID_BYTES, MESSAGE_ID_HEADER, Headers

_MOST_ID_BYTES = 255


def message_key(headers: Headers, topic: str, partition: int, offset: int) -> bytes:
    """The key of a message: its id, as in `Message.message_id`.

    A producer may write an id of any length into the header, but it becomes part of an index entry, which PostgreSQL
    limits to 2.7 kB. So an id longer than 255 bytes is replaced by its SHA-256 (32 bytes): the same message still has
    the same key, and no row is refused because of its id.
    """
    for name, value in headers:
        if name == MESSAGE_ID_HEADER and value:
            return value if len(value) <= _MOST_ID_BYTES else hashlib.sha256(value).digest()
    return f"{topic}/{partition}/{offset}".encode()


def by_id(headers: Sequence[Headers], untimed: Collection[int]) -> Sequence[bool]:
    """`Rows.by_id` of messages with these headers; ``untimed``: `Decoded.untimed`."""
    own = {place for place in untimed if _has_own_id(headers[place])}
    return [place in own for place in range(len(headers))] if own else ()


def _has_own_id(headers: Headers) -> bool:
    """Whether the message has an id of its caller's, as the API makes of an ``Idempotency-Key``: who sends the message
    once more gives it that id again. A producer makes an id for one message, with one time."""
    for name, value in headers:
        if name == MESSAGE_ID_HEADER and value:
            return len(value) != MADE_ID_BYTES
    return False
