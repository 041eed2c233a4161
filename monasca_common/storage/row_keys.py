# SPDX-License-Identifier: Apache-2.0
"""What keys the row of a message that is no metric: its id, which must fit into an index."""

from __future__ import annotations

import hashlib

from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers

_MOST_ID_BYTES = 255


def message_key(headers: Headers, topic: str, partition: int, offset: int) -> bytes:
    """The id as `Message.message_id` has it.

    An id is whatever its producer wrote into a header, as long as it liked, and becomes part of an index, of which
    PostgreSQL takes 2.7 kB at most. So one longer than 255 bytes stands as its SHA-256 (32 bytes): the same message
    still has the same id, and no row is refused for it.
    """
    for name, value in headers:
        if name == MESSAGE_ID_HEADER and value:
            return value if len(value) <= _MOST_ID_BYTES else hashlib.sha256(value).digest()
    return f"{topic}/{partition}/{offset}".encode()
