# SPDX-License-Identifier: Apache-2.0
"""A minimal connection with Kafka's protocol, one request at a time."""

import socket
import struct

from monasca_common.devbroker.errors import BrokerFailed
from monasca_common.devbroker.framing import LENGTH_BYTES, ApiKey, frame_length
from monasca_common.devbroker.ports import HOST

_CORRELATION_ID = 1
_HEADER = struct.Struct(">hhi")


class Connection:
    """A connection to the node at ``port``; each answer may take ``timeout`` seconds. Raises `OSError`."""

    def __init__(self, port: int, timeout: float) -> None:
        self._socket = socket.create_connection((HOST, port), timeout)

    def close(self) -> None:
        self._socket.close()

    def ask(self, api_key: int, api_version: int, body: bytes) -> bytes:
        """Send a request with a header of version 1; return the answer without length and correlation id."""
        frame = _HEADER.pack(api_key, api_version, _CORRELATION_ID) + string("monasca-common") + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._receive(frame_length(self._receive(LENGTH_BYTES)))[4:]

    def log_in(self, user: str, password: str) -> None:
        """Authenticate with SASL PLAIN."""
        token = f"\0{user}\0{password}".encode()
        self.ask(ApiKey.SASL_HANDSHAKE, 1, string("PLAIN"))
        answer = self.ask(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
        if struct.unpack_from(">h", answer)[0] != 0:
            raise BrokerFailed(f"the broker refuses its own user {user!r}")

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            chunk = self._socket.recv(count - len(received))
            if not chunk:
                raise BrokerFailed("the broker closed the connection: see its log")
            received += chunk
        return bytes(received)


def string(text: str) -> bytes:
    """Encode a string as in older versions of requests: its length (2 bytes) and its bytes."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
