# SPDX-License-Identifier: Apache-2.0
"""The clients of one producer: one for most topics, and one for each smaller batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import Outcomes, ProducerTransport
from monasca_common.kafka.transport.bounded import BoundedProducer

OpenTransport = Callable[[int, Callable[[TransportError], None]], ProducerTransport]

_CLIENT_BATCH_BYTES = 1_000_000  # librdkafka's default
_CLOSE_SECONDS = 0.5  # maximum wait of a close for all clients


class ProducerClients:
    """Opens clients, and presents the clients in use as one. ``main`` is the client for most topics."""

    def __init__(
        self,
        settings: ProducerSettings,
        open_transport: OpenTransport,
        guard: ForkGuard,
        lock: AbstractContextManager[object],
        on_error: Callable[[TransportError], None],
    ) -> None:
        """``open_transport(batch_bytes, on_error)`` opens a client. Clients in use report client-wide errors to
        ``on_error``. ``lock`` is held during calls of ``on_error`` and `use`."""
        self.batch_bytes = min(_CLIENT_BATCH_BYTES, settings.max_message_bytes)
        self.tap = None if settings.tap is None else settings.tap()
        self._open_transport = open_transport
        self._guard = guard
        self._lock = lock
        self._on_error = on_error
        self._by_batch_bytes: dict[int, BoundedProducer] = {}
        self.use(self.open())

    def open(self, batch_bytes: int | None = None) -> BoundedProducer:
        """Open another client without using it yet."""
        opened: list[BoundedProducer] = []

        def on_error(error: TransportError) -> None:
            with self._lock:
                if opened and opened[0] in self.in_use():
                    self._on_error(error)

        client = BoundedProducer(self._open_transport(batch_bytes or self.batch_bytes, on_error), on_error)
        opened.append(client)
        if self.tap is not None:
            client.count(self.tap.bucket_seconds)
        self._guard.pin(client)
        return client

    def use(self, main: BoundedProducer) -> Sequence[BoundedProducer]:
        """Use only this client from now on; return the clients that it replaces."""
        before = self.in_use()
        self.main = main
        self._by_batch_bytes = {self.batch_bytes: main}
        return before

    def add(self, batch_bytes: int, client: BoundedProducer) -> None:
        """Use this client as well."""
        self._by_batch_bytes = {**self._by_batch_bytes, batch_bytes: client}

    def find(self, batch_bytes: int) -> BoundedProducer | None:
        """Return the client in use whose batches have at most this size."""
        return self._by_batch_bytes.get(batch_bytes)

    def in_use(self) -> Sequence[BoundedProducer]:
        return tuple(self._by_batch_bytes.values())

    def release(self, clients: Sequence[BoundedProducer] | None = None) -> None:
        """Close clients that are no longer used, or the clients in use if ``None``."""
        if clients is None:
            clients, self._by_batch_bytes = self.in_use(), {}
        for client in clients:
            client.close(_CLOSE_SECONDS / len(clients))
        self._guard.unpin(clients)

    # Calls of all clients in use

    def collect(self, seconds: float, *, flush: bool) -> Iterator[Outcomes]:
        """Yield the outcomes of polling or flushing each client, for at most ``seconds`` in total. A client that raises
        does not delay the others: the error is raised at the end."""
        clients, failure = self.in_use(), None
        for client in clients:
            try:
                timeout = seconds / len(clients) if client.queued() else 0
                outcomes = (client.flush if flush else client.poll)(timeout)
            except Exception as error:
                failure = error
            else:
                yield outcomes
        if failure is not None:
            raise failure

    def have_queued(self) -> bool:
        """Return whether any message has no outcome from `collect`."""
        return any(client.queued() for client in self.in_use())

    def purge(self) -> None:
        """Drop all messages; the next polls return them."""
        for client in self.in_use():
            client.purge()

    @property
    def poisoned(self) -> bool:
        """Whether any call missed its deadline."""
        return any(client.poisoned for client in self.in_use())

    @property
    def oldest_call_seconds(self) -> float:
        """The age of the oldest call that has not returned, or 0 if there is none."""
        return max([client.thread.oldest_seconds() for client in self.in_use()], default=0.0)
