# SPDX-License-Identifier: Apache-2.0
"""A receiver of webhooks that answers 200 after a while, and knows when each alarm's notification came.

``python -m benchmarks.notifications.webhook_receiver MILLISECONDS`` prints its port, which it has on 127.0.0.1
to 127.0.0.100. ``GET /taken``: alarm id and time in seconds of each. Standard library only; it does as little per
request as it can, because it shares the machine with the senders.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

ADDRESSES = 100
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_ALARM = b'"alarm_id":"'


class Receiver(asyncio.Protocol):
    taken: list[tuple[str, float]] = []  # noqa: RUF012 - of all connections together
    answer_after_seconds = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < _length(head):
            return
        self._received = b""
        if head.startswith(b"GET"):
            told = json.dumps(self.taken).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(told) + told)
            return
        _, _, rest = body.replace(b'": "', b'":"').partition(_ALARM)
        self.taken.append((rest.partition(b'"')[0].decode(), time.time()))
        if self.answer_after_seconds:
            asyncio.get_running_loop().call_later(self.answer_after_seconds, self._transport.write, _OK)
        else:
            self._transport.write(_OK)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiver, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    others = [f"127.0.0.{number}" for number in range(2, ADDRESSES + 1)]
    async with await loop.create_server(Receiver, others, port, backlog=1024):
        print(port, flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    Receiver.answer_after_seconds = int(sys.argv[1]) / 1000
    asyncio.run(_serve())
