# SPDX-License-Identifier: Apache-2.0
"""One proxied connection: requests one way, answers the other, faults in between."""

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from monasca_common.devbroker.framing import LENGTH_BYTES, KafkaRequest, correlation_id, frame_length, parse_request
from monasca_common.devbroker.proxy_rules import ActiveFault, Effect, FaultBook

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Counters:
    """How many requests and answers came to the proxy, and what faults did to them."""

    requests: int = 0
    answers: int = 0
    requests_delayed: int = 0
    requests_lost: int = 0
    answers_delayed: int = 0
    answers_lost: int = 0
    connections_cut: int = 0


class _Cut(Exception):
    """Not an error: what a fault asked for."""


class Link:
    """A client's connection and the one to its node."""

    def __init__(self, node: int, client: Stream, upstream: Stream, faults: FaultBook, counters: Counters) -> None:
        self.node = node
        self._client_reader, self._client_writer = client
        self._node_reader, self._node_writer = upstream
        self._faults = faults
        self._counters = counters
        # Answers that a fault is to meet, by correlation id, with the time their request was passed on.
        self._marked: dict[int, tuple[ActiveFault, float]] = {}

    async def carry(self) -> None:
        """Carry both ways until either end, or a fault, closes the connection."""
        ways = [asyncio.ensure_future(self._carry_requests()), asyncio.ensure_future(self._carry_answers())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        """Close both sides."""
        for writer in (self._client_writer, self._node_writer):
            connection = writer.get_extra_info("socket")
            # A forked child of this process may hold the socket too; closing alone would then close nothing.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            writer.close()

    async def _carry_requests(self) -> None:
        while True:
            prefix, frame = await _read_frame(self._client_reader)
            self._counters.requests += 1
            if not self._faults or await self._passes(parse_request(self.node, frame)):
                self._node_writer.write(prefix + frame)
                await self._node_writer.drain()

    async def _passes(self, request: KafkaRequest) -> bool:
        """Meet the fault that takes this request, if one does; whether the request is passed on."""
        active = self._faults.taking(request)
        if active is None:
            return True
        effect, counters = active.fault.effect, self._counters
        if effect.on_answer:
            self._marked[request.correlation_id] = active, asyncio.get_running_loop().time()
        elif effect is Effect.DELAY_REQUEST:
            counters.requests_delayed += 1
            await _wait(active, active.fault.seconds)
        else:
            counters.requests_lost += 1
            if effect is Effect.CUT_REQUEST:
                counters.connections_cut += 1
                raise _Cut
            return False
        return True

    async def _carry_answers(self) -> None:
        while True:
            prefix, frame = await _read_frame(self._node_reader)
            self._counters.answers += 1
            mark = self._marked.pop(correlation_id(frame), None) if self._marked else None
            if mark is None or await self._is_given(*mark):
                self._client_writer.write(prefix + frame)
                await self._client_writer.drain()

    async def _is_given(self, active: ActiveFault, passed_on: float) -> bool:
        """Meet the fault that took this answer's request; whether the answer is given to the client."""
        effect, counters = active.fault.effect, self._counters
        if effect is Effect.DELAY_ANSWER:
            counters.answers_delayed += 1
            seconds = active.fault.seconds
            spent = asyncio.get_running_loop().time() - passed_on
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
    """Until the time is over or the fault is removed; ``None``: until it is removed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(active.removed.wait(), seconds)
