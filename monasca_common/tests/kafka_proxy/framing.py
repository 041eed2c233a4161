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


async def read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the length, as it was read, and the rest of the frame."""
    prefix = await reader.readexactly(_INT32.size)
    return prefix, await reader.readexactly(_INT32.unpack(prefix)[0])
