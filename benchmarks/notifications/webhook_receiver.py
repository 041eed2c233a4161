# SPDX-License-Identifier: Apache-2.0
"""A webhook receiver that answers 200 after ``MILLISECONDS`` and counts the alarms that it was sent.

``python -m benchmarks.notifications.webhook_receiver MILLISECONDS`` prints its port on 127.0.0.1 to 127.0.0.100.
``GET /received`` answers the number of different alarms. Standard library only, and little work per request.
"""

from __future__ import annotations

import asyncio
import sys

ADDRESSES = 100
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
_ALARM = b'"alarm_id":"'
_alarms: set[bytes] = set()


class Receiver(asyncio.Protocol):
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
            count = b"%d" % len(_alarms)
            self._transport.write(_OK % (len(count), count))
            return
        _, _, rest = body.replace(b'": "', b'":"').partition(_ALARM)
        _alarms.add(rest.partition(b'"')[0])
        asyncio.get_running_loop().call_later(int(sys.argv[1]) / 1000, self._transport.write, _OK % (0, b""))


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
    asyncio.run(_serve())
