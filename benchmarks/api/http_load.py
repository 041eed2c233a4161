# SPDX-License-Identifier: Apache-2.0
"""Posts over connections that are kept open, one request under way on each; a process of its own.

Standard library only. It does as little per request as it can, for it shares the machine with what it measures.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.job import percentile

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    port: int
    path: str
    body: str
    connections: int
    requests: int


@dataclass(frozen=True, slots=True)
class Served:
    seconds: float
    p50_ms: float
    p99_ms: float


def _served(load: Load) -> Served:
    """Raises `RuntimeError` at the first answer that is not 204."""
    body = load.body.encode()
    head = f"POST {load.path} HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    waiting, clock = selectors.EpollSelector(), time.perf_counter
    clients = [socket.create_connection(("127.0.0.1", load.port)) for _ in range(load.connections)]
    sent: dict[socket.socket, float] = {}
    taken: list[float] = []
    began = clock()
    for client in clients:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(client, selectors.EVENT_READ)
        sent[client] = clock()
        client.sendall(request)
    left = load.requests - load.connections
    while len(taken) < load.requests:
        events = waiting.select(_PATIENCE_SECONDS)
        if not events:
            raise RuntimeError("no answer")
        for key, _ in events:
            client = key.fileobj
            assert isinstance(client, socket.socket)
            answer = client.recv(65_536)
            if not answer.startswith(b"HTTP/1.1 204") or not answer.endswith(b"\r\n\r\n"):
                raise RuntimeError(f"answered {answer[:200]!r}")
            now = clock()
            taken.append(now - sent[client])
            if left > 0:
                left -= 1
                sent[client] = now
                client.sendall(request)
    seconds = clock() - began
    for client in clients:
        client.close()
    return Served(seconds, percentile(taken, 0.5) * 1000, percentile(taken, 0.99) * 1000)


if __name__ == "__main__":
    print(json.dumps(asdict(_served(Load(**json.loads(sys.argv[1]))))))
