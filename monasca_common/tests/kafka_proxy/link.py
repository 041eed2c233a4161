# SPDX-License-Identifier: Apache-2.0
"""A proxied connection: forwards requests and responses, and applies faults."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from monasca_common.tests.kafka_proxy.faults import Effect, Fault
from monasca_common.tests.kafka_proxy.framing import correlation_id, parse_request, read_frame, without_brokers

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Cut(Exception):
    """Raised to end a connection because of a fault; it is not an error."""


class Link:
    """A client's connection, and the proxy's connection to the node. ``faults``: those in force, oldest first."""

    def __init__(self, client: Stream, upstream: Stream, faults: Sequence[Fault]) -> None:
        self._client_reader, self._client_writer = client
        self._node_reader, self._node_writer = upstream
        self._faults = faults
        # The faults for expected responses by correlation id, with the time at which each request was forwarded.
        self._marked: dict[int, tuple[Fault, float]] = {}

    async def forward(self) -> None:
        """Forward in both directions until the client, the node or a fault closes the connection."""
        directions = [asyncio.ensure_future(self._forward_requests()), asyncio.ensure_future(self._forward_answers())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        """Close both sides."""
        for writer in (self._client_writer, self._node_writer):
            connection = writer.get_extra_info("socket")
            # A forked child may also hold the socket open, so closing it here would not end the connection.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            writer.close()

    async def _forward_requests(self) -> None:
        while True:
            prefix, frame = await read_frame(self._client_reader)
            if not self._faults or await self._passes_request(frame):
                self._node_writer.write(prefix + frame)
                await self._node_writer.drain()

    async def _passes_request(self, frame: bytes) -> bool:
        """Apply the first fault that affects this request, if any. Return whether to forward the request."""
        request = parse_request(frame)
        fault = next((fault for fault in tuple(self._faults) if fault.takes(request)), None)
        if fault is None:
            return True
        if fault.effect is Effect.CUT_REQUEST:
            raise _Cut
        if fault.effect is Effect.DELAY_REQUEST:
            await _wait(fault, fault.seconds)
        elif fault.effect.on_answer:
            self._marked[request.correlation_id] = fault, asyncio.get_running_loop().time()
        return fault.effect is not Effect.DROP_REQUEST

    async def _forward_answers(self) -> None:
        while True:
            prefix, frame = await read_frame(self._node_reader)
            mark = self._marked.pop(correlation_id(frame), None) if self._marked else None
            if mark is None or await self._passes_answer(*mark):
                self._client_writer.write(prefix + frame)
                await self._client_writer.drain()
            elif mark[0].effect is Effect.HIDE_BROKERS:
                frame = without_brokers(frame)
                self._client_writer.write(len(frame).to_bytes(len(prefix), "big") + frame)
                await self._client_writer.drain()
                raise _Cut

    async def _passes_answer(self, fault: Fault, forwarded_at: float) -> bool:
        """Apply the fault of this response's request. Return whether to forward the response."""
        if fault.effect is Effect.CUT_ANSWER:
            raise _Cut
        if fault.effect is Effect.DELAY_ANSWER:
            spent = asyncio.get_running_loop().time() - forwarded_at
            await _wait(fault, None if fault.seconds is None else max(0.0, fault.seconds - spent))
        return fault.effect is Effect.DELAY_ANSWER


async def _wait(fault: Fault, seconds: float | None) -> None:
    """Wait for ``seconds`` (``None``: indefinitely), or until the fault is removed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(fault.removed.wait(), seconds)
