# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of each node that delays and drops requests and responses, and cuts connections, by rule.

One thread forwards all connections. Traffic that no fault affects passes unchanged and in order.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from monasca_common.devbroker.errors import DevBrokerError
from monasca_common.devbroker.ports import HOST
from monasca_common.tests.kafka_proxy.faults import Fault
from monasca_common.tests.kafka_proxy.link import Link
from monasca_common.tests.threads import LoopThread

_SECONDS = 10.0
# Frames of a megabyte are common; with asyncio's default buffer of 64 KiB, the reader would pause 16 times per frame.
_BUFFER_BYTES = 1 << 20


class KafkaProxy:
    """Forwards Kafka's protocol between clients and nodes; thread-safe.

    ::

        fault = proxy.add(Fault.cut_answer(ApiKey.PRODUCE, times=3))
        ...
        fault.taken   # 3
        proxy.clear()
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._links: set[Link] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop: LoopThread | None = None

    def start(self, targets: Mapping[int, int]) -> None:
        """Listen. ``targets``: the port of a node by the port for its clients. Raises `OSError` if a port is in use."""
        if self._loop is not None:
            raise DevBrokerError("the proxy is already running: stop it first")
        self._loop = LoopThread()
        try:
            self._loop.run(self._listen(targets), _SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Close every connection and stop listening. Can be called repeatedly."""
        if self._loop is not None:
            self.clear()
            self._loop.run(self._close(), _SECONDS)
            self._loop.stop()
            self._loop = None

    def add(self, fault: Fault) -> Fault:
        """Activate the fault, and return it."""
        self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Remove the fault. Delayed requests and responses pass immediately; dropped requests and responses remain
        lost."""
        with contextlib.suppress(ValueError):
            self._faults.remove(fault)
        self._end_delays(fault)

    def clear(self) -> None:
        """Remove every fault."""
        removed = tuple(self._faults)
        self._faults.clear()
        self._end_delays(*removed)

    def cut_connections(self) -> int:
        """Close all connections and return their number. New connections are accepted."""

        async def cut() -> int:
            for link in self._links:
                link.cut()
            return len(self._links)

        return int(self._loop.run(cut(), _SECONDS)) if self._loop else 0

    def _end_delays(self, *removed: Fault) -> None:
        for fault in removed:
            if self._loop is not None:
                self._loop.loop.call_soon_threadsafe(fault.removed.set)

    async def _listen(self, targets: Mapping[int, int]) -> None:
        for port, target in targets.items():
            server = await asyncio.start_server(self._handler(target), HOST, port, limit=_BUFFER_BYTES)
            self._servers.append(server)

    def _handler(self, target: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # The connection has a separate task, because asyncio logs an error if a task that it created is cancelled.
            connection = asyncio.ensure_future(self._forward(target, reader, writer))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
            # this also runs if the task is cancelled before it starts
            connection.add_done_callback(lambda _: writer.close())

        return handle

    async def _forward(self, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # If the node is down, close the connection, which is what a client without a proxy would see.
        with contextlib.suppress(OSError):
            upstream = await asyncio.open_connection(HOST, target, limit=_BUFFER_BYTES)
            link = Link((reader, writer), upstream, self._faults)
            self._links.add(link)
            try:
                await link.forward()
            finally:
                self._links.discard(link)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        connections = tuple(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # the event loop needs time to close the sockets
