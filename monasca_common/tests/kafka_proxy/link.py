# SPDX-License-Identifier: Apache-2.0
"""A proxied connection: forwards requests and responses, and applies faults."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from monasca_common.tests.kafka_proxy.faults import ActiveFault, Effect, FaultList
from monasca_common.tests.kafka_proxy.framing import (
    LENGTH_BYTES,
    KafkaRequest,
    correlation_id,
    frame_length,
    parse_request,
)

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Counters:
    """The numbers of requests and responses that the proxy received, and how many of them faults affected."""

    requests: int = 0
    answers: int = 0
    requests_lost: int = 0
    answers_delayed: int = 0
    answers_lost: int = 0
    connections_cut: int = 0


class _Cut(Exception):
    """Raised to end a connection because of a fault; it is not an error."""


class Link:
    """A client's connection, and the proxy's connection to the node."""

    def __init__(self, node: int, client: Stream, upstream: Stream, faults: FaultList, counters: Counters) -> None:
        self.node = node
        self._client_reader, self._client_writer = client
        self._node_reader, self._node_writer = upstream
        self._faults = faults
        self._counters = counters
        # The faults for expected responses by correlation id, with the time at which each request was forwarded.
        self._marked: dict[int, tuple[ActiveFault, float]] = {}

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
            prefix, frame = await _read_frame(self._client_reader)
            self._counters.requests += 1
            if not self._faults or await self._passes_request(parse_request(self.node, frame)):
                self._node_writer.write(prefix + frame)
                await self._node_writer.drain()

    async def _passes_request(self, request: KafkaRequest) -> bool:
        """Apply the fault that affects this request, if any. Return whether to forward the request."""
        active = self._faults.match(request)
        if active is None:
            return True
        effect, counters = active.fault.effect, self._counters
        if effect.on_answer:
            self._marked[request.correlation_id] = active, asyncio.get_running_loop().time()
        elif effect is Effect.DELAY_REQUEST:
            await _wait(active, active.fault.seconds)
        else:
            counters.requests_lost += 1
            if effect is Effect.CUT_REQUEST:
                counters.connections_cut += 1
                raise _Cut
            return False
        return True

    async def _forward_answers(self) -> None:
        while True:
            prefix, frame = await _read_frame(self._node_reader)
            self._counters.answers += 1
            mark = self._marked.pop(correlation_id(frame), None) if self._marked else None
            if mark is None or await self._passes_answer(*mark):
                self._client_writer.write(prefix + frame)
                await self._client_writer.drain()

    async def _passes_answer(self, active: ActiveFault, forwarded_at: float) -> bool:
        """Apply the fault of this response's request. Return whether to forward the response."""
        effect, counters = active.fault.effect, self._counters
        if effect is Effect.DELAY_ANSWER:
            counters.answers_delayed += 1
            seconds = active.fault.seconds
            spent = asyncio.get_running_loop().time() - forwarded_at
            await _wait(active, None if seconds is None else max(0.0, seconds - spent))
            return True
        counters.answers_lost += 1
        if effect is Effect.CUT_ANSWER:
            counters.connections_cut += 1
            raise _Cut
        return False


async def _read_frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    prefix = await reader.readexactly(LENGTH_BYTES)
    return prefix, await reader.readexactly(frame_length(prefix))


async def _wait(active: ActiveFault, seconds: float | None) -> None:
    """Wait for ``seconds`` (``None``: indefinitely), or until the fault is removed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(active.removed.wait(), seconds)
