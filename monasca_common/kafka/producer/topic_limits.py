# SPDX-License-Identifier: Apache-2.0
"""The limits of a producer's topics: the client that sends a topic's messages, and their maximum size.

Any rejection by the broker bumps the idempotent epoch of the whole client and can duplicate adjacent messages, so a
message that is too large must not be sent at all. A thread requests the limits of all topics that need one; messages
wait here for the limit of their topic, in order. A topic with a small limit gets its own client, whose batches stay
below the limit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from monasca_common.kafka.errors import (
    AuthenticationError,
    DeliveryAbandoned,
    DeliveryRefused,
    FatalError,
    RetriableError,
    TopicRecreated,
    TransportError,
)
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.table import Bulk, Table
from monasca_common.kafka.safe_log import SafeLogger
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.bounded import BoundedProducer
from monasca_common.kafka.transport.producer_clients import ProducerClients
from monasca_common.kafka.transport.reservation import Reservation
from monasca_common.kafka.transport.topic_watch import TopicWatch

LOG = SafeLogger(__name__)

_REQUEST_SECONDS = 5.0
_REPEAT_SOON_SECONDS = 0.2  # after a request without a response
_PATIENCE_SECONDS = 10.0
_REPEAT_SECONDS = 30.0  # after a refusal, because a limit may be raised


@dataclass(slots=True, eq=False)
class TopicLimit:
    """The size of the largest message that a topic accepts, and the client whose batches stay below it."""

    transport: BoundedProducer
    max_bytes: int
    sends: Reservation  # the reservation of the next plain sends
    is_atomic: bool  # whether no signal handler interrupts the client's `send`
    known_at: float
    refusal: DeliveryRefused | None = None  # the error of every message, if ``max_bytes`` is 0


@dataclass(slots=True, eq=False)
class _Lookup:
    """A topic with an unknown limit, and the bulks that wait for it."""

    impatient_at: float  # after this time, the configured limit is used
    due_at: float = 0.0  # in real time, because a test may stop its clock
    bulks: list[Bulk] = field(default_factory=list)


class TopicLimits:
    """``ready`` has the known limits. It is empty in a forked child (so that `send` checks the guard there), while
    another client replaces the current one, and after the producer is closed."""

    def __init__(
        self,
        settings: ProducerSettings,
        table: Table,
        clients: ProducerClients,
        ready: dict[str, TopicLimit],
        hand_over: Callable[[TopicLimit, Bulk], None],
    ) -> None:
        """``hand_over`` is called for each waiting bulk once the limit of its topic is known."""
        self.ready = ready
        self.recreated_topics = 0  # number of times that a deleted and recreated topic was detected
        self._table = table
        self._table.on_undelivered = self._on_undelivered
        self._settings = settings
        self._clients = clients
        self._hand_over = hand_over
        self._lookups: dict[str, _Lookup] = {}
        self.resume()

    def resume(self) -> None:
        """Hand messages over to the clients in use, once their limits are known."""
        watch_seconds = self._settings.topic_check_seconds
        self.watch = TopicWatch(self._clients.main, (), watch_seconds, on_recreated=self._topic_recreated)
        self._paused = False

    def pause(self) -> None:
        """Hand over no more messages. Messages that wait for a limit are refused; later messages wait for another
        client, or are refused once the table is shut."""
        self.watch.stop()
        with self._table.lock:
            self._paused = True
            self.ready.clear()
            self.refuse_waiting()

    def _on_undelivered(self, error: TransportError) -> None:
        """Handle the client's error for one message."""
        if isinstance(error, FatalError):
            self._table.last_error = error  # the error applies to all messages
        if error.name == "MSG_SIZE_TOO_LARGE":
            self.ready.clear()  # a topic's limit was lowered after the request

    def wait_for(self, bulk: Bulk) -> TopicLimit | None:
        """Return the limit of the bulk's topic, or ``None`` if the bulk waits for the limit or was refused."""
        topic = bulk.topic
        with self._table.lock:
            limit = self.ready.get(topic)
            if limit is not None:
                return limit
            if not is_topic_name(topic):
                text = f"{topic!r} is not the name of a topic: {TOPIC_NAME_RULE}"
                cause = TransportError(text, code=17, name="TOPIC_EXCEPTION")
                self._table.give_up_bulks((bulk,), Outcome.FAILED, DeliveryRefused(cause, permanent=True))
            elif self._table.shut_down:
                self._table.give_up_bulks((bulk,), Outcome.FAILED, _not_sent())
            else:
                lookup = self._lookups.setdefault(topic, _Lookup(0.0))
                if not lookup.bulks:
                    lookup.impatient_at = self._table.clock.monotonic() + _PATIENCE_SECONDS
                    lookup.due_at = 0.0
                lookup.bulks.append(bulk)
            return None

    def refuse_waiting(self) -> None:
        """Settle the messages that wait for a limit, without sending them."""
        with self._table.lock:
            lookups, self._lookups = self._lookups, {}
        for lookup in lookups.values():
            self._table.give_up_bulks(lookup.bulks, Outcome.FAILED, _not_sent())

    def request(self) -> None:
        """Start a request for the limits that are due. The serving thread calls it."""
        if not self._lookups:
            return
        with self._table.lock:
            if self._paused:
                return
            client, now = self._clients.main, time.monotonic()
            due = {topic: lookup for topic, lookup in self._lookups.items() if lookup.due_at <= now}
            for lookup in due.values():
                lookup.due_at = now + 2 * _REQUEST_SECONDS  # unless this request ends first
        if not due:
            return
        try:
            threading.Thread(target=self._request, args=(client, due), name="kafka-topic-limits", daemon=True).start()
        except RuntimeError as error:
            LOG.warning("cannot start a thread to request limits of topics; retrying: %s", error)
            for lookup in due.values():
                lookup.due_at = now + _REPEAT_SOON_SECONDS

    def _request(self, client: BoundedProducer, lookups: Mapping[str, _Lookup]) -> None:
        """Run one request, as the main function of a thread."""
        with self._table.as_caller():
            answers: Mapping[str, int | TransportError]
            try:
                answers = client.max_message_bytes(lookups, _REQUEST_SECONDS)
            except Exception as error:  # messages wait for this thread
                fault = error if isinstance(error, TransportError) else RetriableError(repr(error))
                answers = dict.fromkeys(lookups, fault)
            for topic, lookup in lookups.items():
                lookup.due_at = time.monotonic() + _REPEAT_SOON_SECONDS  # unless the limit is known by then
                try:
                    self._answered(topic, lookup, answers[topic])
                except Exception:  # messages to the other topics wait for this thread
                    LOG.exception("the limit of topic %r cannot be used", topic)

    def _answered(self, topic: str, lookup: _Lookup, answer: int | TransportError) -> None:
        """Store a limit, or use the configured limit if the topic's limit is not available. Without a response, bulks
        wait for some time while the limit is requested again."""
        is_late = isinstance(answer, RetriableError | AuthenticationError)  # a restarting broker can refuse a login
        if not isinstance(answer, int) and is_late:
            self._table.note_trouble(answer)
            if self._table.clock.monotonic() < lookup.impatient_at:
                return
        max_bytes = answer if isinstance(answer, int) else self._settings.max_message_bytes
        if self._lookups.get(topic) is not lookup:
            return  # the topic's messages were refused, because the clients were replaced or closed
        batch_bytes = min(max_bytes, self._clients.batch_bytes)
        try:
            limit = self._limit(topic, max_bytes, batch_bytes)  # without the lock, because it may open a client
        except Exception as error:
            cause = error if isinstance(error, TransportError) else TransportError(repr(error))
            self._table.note_trouble(cause)
            if self._table.clock.monotonic() < lookup.impatient_at:
                return
            limit, is_late = self._limit_of(self._clients.main, 0, DeliveryRefused(cause, permanent=False)), True
            LOG.warning("topic %r has a small limit, and its client cannot be opened; messages fail: %s", topic, cause)
        with self._table.lock:
            # If not, the clients were replaced, or another request has opened a client, which the next request uses.
            is_unique = limit.refusal is not None or self._clients.find(batch_bytes) in (None, limit.transport)
            is_current = is_unique and self._lookups.get(topic) is lookup
            if is_current:
                bulks, lookup.bulks = lookup.bulks, []
                lookup.due_at = time.monotonic() + _REPEAT_SECONDS
                if not is_late:
                    del self._lookups[topic]
                if limit.refusal is None:
                    self._clients.add(batch_bytes, limit.transport)
                for bulk in bulks:
                    self._hand_over(limit, bulk)
                self.ready[topic] = limit
                self.watch.add(topic)
        if not is_current and limit.transport not in self._clients.in_use():
            self._clients.release((limit.transport,))
        elif not isinstance(answer, int):  # without the lock, because a log handler may block
            text = "the limit of topic %r is not known (%s); [kafka] max_message_bytes (%d) is used instead"
            LOG.log(logging.WARNING if is_late else logging.INFO, text, topic, answer, max_bytes)

    def _limit(self, topic: str, max_bytes: int, batch_bytes: int) -> TopicLimit:
        transport = self._clients.find(batch_bytes)
        if transport is None and self._settings.transactional_id is not None:
            cause = TransportError(
                f"topic {topic!r} accepts batches of at most {max_bytes} bytes, and the only client of a transaction "
                f"sends larger ones: set [kafka] max_message_bytes to {max_bytes}, or raise the topic's "
                "max.message.bytes"
            )
            return self._limit_of(self._clients.main, 0, DeliveryRefused(cause, permanent=True))
        return self._limit_of(transport or self._clients.open(batch_bytes), max_bytes)

    def _limit_of(
        self, transport: BoundedProducer, max_bytes: int, refusal: DeliveryRefused | None = None
    ) -> TopicLimit:
        nothing, now = transport.new_reservation(0, 0, 0, 0, 0, None), self._table.clock.monotonic()
        return TopicLimit(transport, max_bytes, nothing, transport.send_is_atomic, now, refusal)

    def forget_if_old(self, topic: str, limit: TopicLimit) -> None:
        """Request the topic's limit again at the next message, if the known limit is old."""
        if self._table.clock.monotonic() - limit.known_at > _REPEAT_SECONDS:
            self.ready.pop(topic, None)

    def _topic_recreated(self, found: TopicRecreated) -> None:
        self.recreated_topics += 1
        text = (
            "topic %r, which this producer writes to, was deleted and recreated (id %s is now %s): messages "
            "acknowledged shortly before may be lost with the old topic, and its readers stop until `monasca-common "
            "offsets reset`"
        )
        LOG.error(text, found.topic, found.old_id, found.new_id)
        self.ready.pop(found.topic, None)


def _not_sent() -> DeliveryAbandoned:
    return DeliveryAbandoned("abandoned before the limit of its topic was known; it was not sent")
