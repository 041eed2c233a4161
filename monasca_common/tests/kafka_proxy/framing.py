# SPDX-License-Identifier: Apache-2.0
"""The part of Kafka's wire format that distinguishes requests.

A frame is a length (4 bytes) followed by this number of bytes. A request begins with the API key (2 bytes), the API
version (2 bytes) and a correlation id (4 bytes); a response begins with the correlation id of its request.
"""

import asyncio
import enum
import struct
from dataclasses import dataclass

_REQUEST = struct.Struct(">hhi")
_INT32 = struct.Struct(">i")
_BROKERS_AT = 9  # after the correlation id, one byte without tagged fields, and the throttle time


class ApiKey(enum.IntEnum):
    """The API keys that tests use; other keys can be given as numbers."""

    PRODUCE = 0
    FETCH = 1
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    END_TXN = 26


@dataclass(frozen=True, slots=True)
class KafkaRequest:
    """A request that has a response, which all requests have except produce requests with acks=0.

    ``frame``: the request without its length.
    """

    api_key: int
    correlation_id: int
    frame: bytes


def parse_request(frame: bytes) -> KafkaRequest:
    api_key, _, request_id = _REQUEST.unpack_from(frame)
    return KafkaRequest(api_key, request_id, frame)


def correlation_id(answer: bytes) -> int:
    """Return the correlation id of ``answer``, a frame without its length."""
    return int(_INT32.unpack_from(answer)[0])


def without_brokers(answer: bytes) -> bytes:
    """Return a metadata response of version 9 or later without its brokers."""
    count, at = _varint(answer, _BROKERS_AT)
    for _ in range(count - 1):
        host, at = _varint(answer, at + 4)  # after the broker's id; the length of a string, plus 1
        rack, at = _varint(answer, at + host - 1 + 4)  # after the port
        at += max(0, rack - 1) + 1  # one byte: no tagged fields
    return answer[:_BROKERS_AT] + b"\x01" + answer[at:]


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """Return the number at this position, and the position after it."""
    value, shift = 0, 0
    while frame[at] >= 0x80:
        value, shift, at = value | (frame[at] & 0x7F) << shift, shift + 7, at + 1
    return value | frame[at] << shift, at + 1


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the length, as it was read, and the rest of the frame."""
    prefix = await reader.readexactly(_INT32.size)
    return prefix, await reader.readexactly(_INT32.unpack(prefix)[0])
