# SPDX-License-Identifier: Apache-2.0
"""How messages reach a topic: through which client, and up to which size.

Any rejection by the broker bumps the idempotent epoch of the whole client and may double its neighbours, so a
message that is too large must not be sent at all. The topic's limit is asked for once; what is handed over
before the answer waits here, in order. A topic with a small limit gets a client whose batches stay below it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat

from monasca_common.kafka.delivery import Outcome
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryAbandoned,
    DeliveryRefused,
    MessageTooLarge,
    RetriableError,
    TransportError,
)
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Record
from monasca_common.kafka.producing.bulk import Bulk
from monasca_common.kafka.producing.pending import Pending
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ANY_PARTITION, ProducerTransport

LOG = logging.getLogger(__name__)

OpenTransport = Callable[[int, Callable[[TransportError], None]], ProducerTransport]

_CLIENT_BATCH_BYTES = 1_000_000  # librdkafka's own
_ASK_SECONDS = 5.0
_ASK_AGAIN_SOON_SECONDS = 0.1
_PATIENCE_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 30.0  # a limit may have been raised since a message was refused for it


@dataclass(frozen=True, slots=True)
class Route:
    transport: ProducerTransport
    produce: Callable[..., None]  # the transport's, one look-up nearer
    max_bytes: int
    with_ids: bool
    known_at: float
    refusal: DeliveryRefused | None = None  # of everything; then ``max_bytes`` is 0


class Routes:
    def __init__(
        self, settings: ProducerSettings, open_transport: OpenTransport, on_error: Callable[[TransportError], None]
    ) -> None:
        self.ready: dict[str, Route] = {}
        self.on_launch: Callable[[], None] = lambda: None  # called when what waited for a limit went to its client
        self._settings = settings
        self._open_transport = open_transport
        self._on_error = on_error
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Pending]] = {}
        self._closed = threading.Event()
        self._batch_bytes = min(_CLIENT_BATCH_BYTES, settings.max_message_bytes)
        self.main = open_transport(self._batch_bytes, on_error)
        self._by_batch_bytes = {self._batch_bytes: self.main}
        self._transports: tuple[ProducerTransport, ...] = (self.main,)

    def transports(self) -> tuple[ProducerTransport, ...]:
        return self._transports

    def release(self) -> tuple[ProducerTransport, ...]:
        """The clients, to be closed: nobody else gets them any more. Under the ledger's ``serving`` lock."""
        transports, self._transports = self._transports, ()
        return transports

    def launch(self, topic: str, pendings: Iterable[Pending]) -> None:
        """Hand messages of one topic to its client, now or as soon as the topic's limit is known."""
        route = self.ready.get(topic)
        if route is None:
            with self._lock:
                route = self.ready.get(topic)
                if route is None:
                    self._wait_for_limit(topic, pendings)
                    return
        self._produce(route, pendings)

    def _wait_for_limit(self, topic: str, pendings: Iterable[Pending]) -> None:
        if topic in self._waiting:
            self._waiting[topic].extend(pendings)
            return
        self._waiting[topic] = list(pendings)
        threading.Thread(target=self._find, args=(topic,), name="kafka-topic-limit", daemon=True).start()

    def _find(self, topic: str) -> None:
        """Ask until there is an answer; after a while, what waits goes under the configured limit meanwhile."""
        clock = self.main.clock
        impatient_at = clock.monotonic() + _PATIENCE_SECONDS
        pause = _ASK_AGAIN_SOON_SECONDS
        while not self._closed.is_set():
            limit = self._ask(topic)
            if limit is not None:
                self._open(topic, limit)
                return
            if topic in self._waiting and clock.monotonic() >= impatient_at:
                LOG.warning(
                    "no answer about the limit of topic %r; %d stands in", topic, self._settings.max_message_bytes
                )
                self._open(topic, self._settings.max_message_bytes)
                pause = _ASK_AGAIN_SECONDS
            self._closed.wait(pause)

    def _open(self, topic: str, limit: int) -> None:
        with self._lock:
            waiting = self._waiting.pop(topic, [])
            if self._closed.is_set():
                return  # `abandon` has settled them
            route = self._route(topic, limit)
            self._produce(route, [pending for pending in waiting if pending.outcome is None])
            self.ready[topic] = route
        self.on_launch()

    def _ask(self, topic: str) -> int | None:
        """The topic's limit, or what stands in for it where it may not be told; ``None``: no answer yet."""
        fallback = self._settings.max_message_bytes
        try:
            return self.main.max_message_bytes(topic, _ASK_SECONDS)
        except (RetriableError, AuthenticationError) as error:  # a broker that restarts may refuse a login, or TLS
            self._on_error(error)
            return None
        except AuthorizationError:
            LOG.info("the limit of topic %r may not be read; [kafka] max_message_bytes (%d) stands in", topic, fallback)
        except TransportError as error:
            LOG.info("the limit of topic %r is not known (%s); %d stands in", topic, error, fallback)
        return fallback

    def _route(self, topic: str, limit: int) -> Route:
        batch_bytes = min(limit, self._batch_bytes)
        with_ids = topic not in self._settings.topics_without_message_id
        now = self.main.clock.monotonic()
        if batch_bytes < self._batch_bytes and self._settings.transactional_id is not None:
            refusal = TransportError(
                f"topic {topic!r} takes batches of {limit} bytes at most, and a transaction's one client makes larger "
                f"ones: set [kafka] max_message_bytes to {limit}, or raise the topic's max.message.bytes"
            )
            return Route(self.main, self.main.produce, 0, with_ids, now, DeliveryRefused(refusal, permanent=True))
        transport = self._by_batch_bytes.get(batch_bytes)
        if transport is None:
            transport = self._open_transport(batch_bytes, self._on_error)
            self._by_batch_bytes[batch_bytes] = transport
            self._transports = tuple(self._by_batch_bytes.values())
        return Route(transport, transport.produce, limit, with_ids, now)

    def _produce(self, route: Route, pendings: Iterable[Pending]) -> None:
        for pending in pendings:
            if pending.size > route.max_bytes:
                self._refuse_size(route, pending)
                continue
            value, message_id = pending.record, pending.message_id
            partition, timestamp_ms = ANY_PARTITION, 0
            headers: list[tuple[str, bytes | None]] = [] if message_id is None else [(MESSAGE_ID_HEADER, message_id)]
            if isinstance(value, Record):
                partition = ANY_PARTITION if value.partition is None else value.partition
                timestamp_ms = value.timestamp_ms or 0
                headers[:0] = value.headers
                value = value.value
            try:
                route.produce(pending.topic, value, pending.key, partition, pending, pending, timestamp_ms, headers)
            except Exception as error:
                self.refused(pending, error)

    def launch_bulk(self, route: Route, bulk: Bulk) -> None:
        topic, key, produce = bulk.topic, bulk.key, route.produce
        headers: Iterable[list[tuple[str, bytes]]] = (
            repeat([]) if bulk.message_ids is None else [[(MESSAGE_ID_HEADER, mid)] for mid in bulk.message_ids]
        )
        messages = zip(bulk.records, bulk.callbacks(), headers, strict=False)
        for index, (record, callback, header) in enumerate(messages):
            try:
                produce(topic, record, key, ANY_PARTITION, callback, callback, 0, header)
            except Exception as error:
                self.refused(bulk.ledger.break_up(bulk)[index], error)

    def refused(self, pending: Pending, error: Exception) -> None:
        """``produce`` raised: the client did not take the message, so it is surely not in the log."""
        cause = pending.ledger.fault(error)
        pending.ledger.settle((pending,), Outcome.FAILED, DeliveryRefused(cause, permanent=False))

    def _refuse_size(self, route: Route, pending: Pending) -> None:
        error = route.refusal or MessageTooLarge(pending.topic, pending.size, route.max_bytes)
        pending.ledger.settle((pending,), Outcome.FAILED, error)
        if route.transport.clock.monotonic() - route.known_at > _ASK_AGAIN_SECONDS:
            self.forget(pending.topic)

    def forget(self, topic: str | None = None) -> None:
        """Ask for the topic's limit (``None``: every topic's) again at the next message."""
        if topic is None:
            self.ready.clear()
        else:
            self.ready.pop(topic, None)

    def abandon(self) -> None:
        """Closing: what still waits for its topic's limit was never handed to a client."""
        self._closed.set()
        with self._lock:
            self.ready.clear()
            waiting = [pending for pendings in self._waiting.values() for pending in pendings]
            self._waiting.clear()
        for pending in waiting:
            error = DeliveryAbandoned("closed before the topic's brokers could be reached; it was not sent")
            pending.ledger.settle((pending,), Outcome.FAILED, error)
