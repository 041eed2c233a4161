# SPDX-License-Identifier: Apache-2.0
"""The part of Kafka's wire format that distinguishes requests.

A frame is a length (4 bytes) followed by this number of bytes. A request begins with the API key (2 bytes), the API
version (2 bytes) and a correlation id (4 bytes); a response begins with the correlation id of its request.
"""

import enum
import struct
from dataclasses import dataclass

_REQUEST = struct.Struct(">hhi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

LENGTH_BYTES = 4

# The first versions with compact strings and tagged fields, and the first version with a transactional id.
_PRODUCE_FLEXIBLE = 9
_PRODUCE_TRANSACTIONAL = 3


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
    """A request to node ``node``. ``frame``: the request without its length."""

    node: int
    api_key: int
    api_version: int
    correlation_id: int
    frame: bytes

    @property
    def expects_answer(self) -> bool:
        """Whether the request has a response; only produce requests with acks=0 have none."""
        return self.api_key != ApiKey.PRODUCE or _acks(self) != 0


def parse_request(node: int, frame: bytes) -> KafkaRequest:
    """Read the header of a request. Raises `ValueError` if it is too short."""
    if len(frame) < _REQUEST.size:
        raise ValueError(f"a request of {len(frame)} bytes is shorter than its header: this is not Kafka's protocol")
    api_key, api_version, request_id = _REQUEST.unpack_from(frame)
    return KafkaRequest(node, api_key, api_version, request_id, frame)


def correlation_id(answer: bytes) -> int:
    """Return the correlation id of ``answer``, a frame without its length."""
    return int(_INT32.unpack_from(answer)[0])


def frame_length(prefix: bytes) -> int:
    """Return the length in the first four bytes of a frame. Raises `ValueError` if it is negative."""
    length = int(_INT32.unpack(prefix)[0])
    if length < 0:
        raise ValueError(f"a frame of {length} bytes: this is not Kafka's protocol, or TLS is used")
    return length


def _acks(request: KafkaRequest) -> int:
    """Return the acks of a produce request, which follow the client id, tagged fields and transactional id."""
    frame, version = request.frame, request.api_version
    at = _skip_string(frame, _REQUEST.size)
    if version >= _PRODUCE_FLEXIBLE:
        at = _skip_compact_string(frame, at + 1)  # a zero byte means that there are no tagged fields
    elif version >= _PRODUCE_TRANSACTIONAL:
        at = _skip_string(frame, at)
    return int(_INT16.unpack_from(frame, at)[0])


def _skip_string(frame: bytes, at: int) -> int:
    length = int(_INT16.unpack_from(frame, at)[0])
    return at + _INT16.size + max(length, 0)


def _skip_compact_string(frame: bytes, at: int) -> int:
    """Skip a string. Its length plus one is encoded as a variable-length integer with seven bits per byte; zero is
    null."""
    length = shift = 0
    while True:
        byte = frame[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + max(length - 1, 0)
        shift += 7
