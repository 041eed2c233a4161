# SPDX-License-Identifier: Apache-2.0
"""Posts over open connections with one request in flight on each.

Standard library only, and little work per request, because it shares the machine with the server that it measures.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    port: int
    path: str
    body: str
    connections: int
    requests: int


def _seconds(load: Load) -> float:
    """Return how long all requests took. Raises `RuntimeError` at the first answer that is not 204."""
    body = load.body.encode()
    head = f"POST {load.path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    waiting, clock = selectors.EpollSelector(), time.perf_counter
    clients = [socket.create_connection(("127.0.0.1", load.port)) for _ in range(load.connections)]
    answered = 0
    began = clock()
    for client in clients:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(client, selectors.EVENT_READ)
        client.sendall(request)
    left = load.requests - load.connections
    while answered < load.requests:
        events = waiting.select(_PATIENCE_SECONDS)
        if not events:
            raise RuntimeError("no answer")
        for key, _ in events:
            client = key.fileobj
            assert isinstance(client, socket.socket)
            answer = client.recv(65_536)
            if not answer.startswith(b"HTTP/1.1 204") or not answer.endswith(b"\r\n\r\n"):
                raise RuntimeError(f"answered {answer[:200]!r}")
            answered += 1
            if left > 0:
                left -= 1
                client.sendall(request)
    seconds = clock() - began
    for client in clients:
        client.close()
    return seconds


if __name__ == "__main__":
    print(_seconds(Load(**json.loads(sys.argv[1]))))
