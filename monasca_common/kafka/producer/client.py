# SPDX-License-Identifier: Apache-2.0
"""The client of a producer, with the limits of its topics, and its replacement after a fatal error."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.producer.table import Table
from monasca_common.kafka.producer.topic_limits import OpenTransport, TopicLimit, TopicLimits
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ProducerTransport
from monasca_common.kafka.transport.bounded import BoundedProducer


class Client:
    """``ready`` has the limits of known topics, for `KafkaProducer.send`, which takes no lock. It is replaced as
    soon as the client must not be used any more, and in a child of a fork."""

    def __init__(
        self,
        settings: ProducerSettings,
        table: Table,
        open_transport: OpenTransport,
        on_error: Callable[[TransportError], None],
    ) -> None:
        self.guard = ForkGuard("KafkaProducer", in_child=_detach(weakref.ref(self)))
        self._settings = settings
        self._table = table
        self._bucket_seconds: int | None = None
        self._open_transport = open_transport
        self._on_error = on_error
        self._bounded: list[BoundedProducer] = []
        self.in_use = False
        self.limits = self.open_another()
        self.ready: dict[str, TopicLimit] = self.limits.ready

    def open_another(self) -> TopicLimits:
        """Open another client, which is not used until `use`."""
        opened: list[TopicLimits] = []

        def open_transport(batch_bytes: int, on_error: Callable[[TransportError], None]) -> ProducerTransport:
            transport = BoundedProducer(self._open_transport(batch_bytes, on_error), on_error)
            if self._bucket_seconds is not None:
                transport.count(self._bucket_seconds)
            self._bounded.append(transport)
            self.guard.pin(transport)
            return transport

        def on_error(error: TransportError) -> None:
            # Ignore errors of a client that is still being opened, or that was replaced.
            if self.in_use and opened and opened[0] is self.limits:
                self._on_error(error)

        opened.append(TopicLimits(self._settings, self._table, open_transport, on_error))
        return opened[0]

    def use(self, limits: TopicLimits, on_launch: Callable[[], None]) -> None:
        limits.on_launch = on_launch
        self.limits = limits
        self.ready = limits.ready
        self.in_use = True

    def detach(self) -> None:
        """Detach the client: from here on no `send` uses it without a check."""
        self.ready = {}

    def transports(self) -> Sequence[ProducerTransport]:
        """What is to be polled."""
        return self.limits.transports()

    def count(self, bucket_seconds: int) -> None:
        """Count what is delivered, by this client and those that are opened later."""
        self._bucket_seconds = bucket_seconds
        for transport in self.transports():
            transport.count(bucket_seconds)

    def close(self, transports: Sequence[ProducerTransport], grace_seconds: float) -> None:
        for transport in transports:
            transport.close(grace_seconds / len(transports))
        self.guard.unpin(transports)
        self._bounded = [each for each in self._bounded if each not in transports]

    def oldest_call_seconds(self) -> float:
        return max([transport.oldest_call_seconds() for transport in self._bounded], default=0.0)

    @property
    def poisoned(self) -> bool:
        return any(transport.poisoned for transport in self._bounded)


def _detach(client: weakref.ref[Client]) -> Callable[[], None]:
    """Called in a child of a fork: `send` must find no limit, so that it checks the fork guard."""

    def in_child() -> None:
        inherited = client()
        if inherited is not None:
            inherited.detach()

    return in_child
