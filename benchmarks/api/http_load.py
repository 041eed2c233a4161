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
from collections.abc import Iterator
from dataclasses import dataclass

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that use ``bodies`` in turn. ``headers``: of the content. If there is a body for each connection, no
    body is in flight on two connections."""

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
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in load.bodies]
    waiting, clock = selectors.EpollSelector(), time.perf_counter

    def connected(turns: Iterator[bytes]) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", load.port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(client, selectors.EVENT_READ, turns)
        return client

    answered = 0
    began = clock()
    for number in range(load.connections):
        turns = itertools.cycle(requests[number % len(requests) :: load.connections])
        connected(turns).sendall(next(turns))
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
                client = connected(key.data)
            if left > 0:
                left -= 1
                client.sendall(next(key.data))
    seconds = clock() - began
    for key in list(waiting.get_map().values()):
        key.fileobj.close()
    return seconds
