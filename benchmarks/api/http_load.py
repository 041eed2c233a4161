# SPDX-License-Identifier: Apache-2.0
"""Posts over persistent connections, with one request in flight on each. A connection that the server closes is
reopened.

It uses only the standard library and little CPU time per request, because it shares the machine with the measured
server.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from dataclasses import dataclass

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that use ``bodies`` in turn. ``headers``: of the content."""

    port: int
    path: str
    headers: dict[str, str]
    bodies: list[bytes]
    connections: int
    requests: int


def send(load: Load) -> float:
    """Return the duration of all requests in seconds. Raises `RuntimeError` at the first response whose status is not
    204 or 200."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in load.headers.items())
    head = f"POST {load.path} HTTP/1.1\r\nHost: benchmark\r\n{headers}Content-Length: "
    requests = itertools.cycle([f"{head}{len(body)}\r\n\r\n".encode() + body for body in load.bodies])
    waiting, clock = selectors.EpollSelector(), time.perf_counter

    def connected() -> socket.socket:
        client = socket.create_connection(("127.0.0.1", load.port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(client, selectors.EVENT_READ)
        return client

    answered = 0
    began = clock()
    for _ in range(load.connections):
        connected().sendall(next(requests))
    left = load.requests - load.connections
    while answered < load.requests:
        events = waiting.select(_PATIENCE_SECONDS)
        if not events:
            raise RuntimeError("no response")
        for key, _ in events:
            client = key.fileobj
            assert isinstance(client, socket.socket)
            answer = client.recv(65_536)
            if not answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 200")) or not answer.endswith(b"\r\n\r\n"):
                raise RuntimeError(f"responded with {answer[:200]!r}")
            answered += 1
            if b"\r\nConnection: close\r\n" in answer:
                waiting.unregister(client)
                client.close()
                client = connected()
            if left > 0:
                left -= 1
                client.sendall(next(requests))
    seconds = clock() - began
    for key in list(waiting.get_map().values()):
        key.fileobj.close()
    return seconds
