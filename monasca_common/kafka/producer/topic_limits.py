# SPDX-License-Identifier: Apache-2.0
"""The clients of a producer, and the limits of its topics: which client takes a topic's messages, and how large ones.

Any rejection by the broker bumps the idempotent epoch of the whole client and may double its neighbours, so a
message that is too large must not be sent at all. The topic's limit is asked for once; what is handed over
before the answer waits here, in order. A topic with a small limit gets a client whose batches stay below it.

Limits are requested together: one request names all topics that are due. While it is out, a topic that comes starts the
next one; when `_MOST_REQUESTS` are out, those that come wait for the first to return and share a request.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from monasca_common.kafka.errors import (
    AuthenticationError,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    FatalError,
    RetriableError,
    TopicRecreated,
    TransportError,
)
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.table import Bulk, Table
from monasca_common.kafka.safe_log import SafeLogger
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ProducerTransport
from monasca_common.kafka.transport.bounded import BoundedProducer
from monasca_common.kafka.transport.reservation import Reservation
from monasca_common.kafka.transport.topic_watch import TopicWatch

LOG = SafeLogger(__name__)

OpenTransport = Callable[[int, Callable[[TransportError], None]], ProducerTransport]

_CLIENT_BATCH_BYTES = 1_000_000  # librdkafka's own
_ASK_SECONDS = 5.0
_ASK_AGAIN_SOON_SECONDS = 0.1
_PATIENCE_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 30.0  # a limit may have been raised since a message was refused for it
_MOST_REQUESTS = 4  # each has a thread while it is out
CLOSE_SECONDS = 0.5  # that a close waits for its clients


@dataclass(slots=True, eq=False)
class TopicLimit:
    """The size of the largest message that a topic takes, and the client that keeps its batches below it."""

    transport: BoundedProducer
    max_bytes: int
    sends: Reservation  # of the next plain sends
    is_atomic: bool  # whether the client's `send` is one step for signal handlers
    known_at: float
    refusal: DeliveryRefused | None = None  # of every message; then ``max_bytes`` is 0


@dataclass(slots=True, eq=False)
class _Question:
    """A topic whose limit is not known, and the bulks that wait for it."""

    bulks: list[Bulk] = field(default_factory=list)
    impatient_at: float = 0.0
    again_at: float = 0.0  # in real time, which passes for every clock; infinity while a request is out


class TopicLimits:
    """``ready`` has the limits that are known. It is empty in a child of a fork, so that `send` checks the guard there,
    while another client takes the place of the one before, and once the producer is closed."""

    def __init__(
        self,
        settings: ProducerSettings,
        table: Table,
        open_transport: OpenTransport,
        hand_over: Callable[[TopicLimit, Bulk], None],
    ) -> None:
        """``hand_over`` is called for each bulk that waited, once the limit of its topic is known."""
        self.ready: dict[str, TopicLimit] = {}
        self.guard = ForkGuard("KafkaProducer", in_child=self.forget)
        self.tap = None if settings.tap is None else settings.tap()
        self.recreated_topics = 0  # how often one of these topics was found deleted and recreated
        self._table = table
        self._table.on_undelivered = self._on_undelivered
        self._settings = settings
        self._open_transport = open_transport
        self._hand_over = hand_over
        self._lock = table.lock  # one for both: a signal handler that sends may interrupt its owner and needs both
        self._questions: dict[str, _Question] = {}
        self._requests = 0  # that are out
        self._paused = False
        self._batch_bytes = min(_CLIENT_BATCH_BYTES, settings.max_message_bytes)
        self._by_batch_bytes: dict[int, BoundedProducer] = {}
        self.use(self.open_client())

    # The clients

    def open_client(self, batch_bytes: int | None = None) -> BoundedProducer:
        """Open another client, which is not in use yet."""
        opened: list[BoundedProducer] = []

        def on_error(error: TransportError) -> None:
            with self._table.lock:  # `use` replaces the clients in one step
                if opened and opened[0] in self.transports():
                    self._on_error(error)

        transport = BoundedProducer(self._open_transport(batch_bytes or self._batch_bytes, on_error), on_error)
        opened.append(transport)
        if self.tap is not None:
            transport.count(self.tap.bucket_seconds)
        self.guard.pin(transport)
        return transport

    def use(self, main: BoundedProducer) -> Sequence[BoundedProducer]:
        """Use this client from now on; returns those that it replaces."""
        with self._table.lock:
            before = self.transports()
            self.main = main
            self._by_batch_bytes = {self._batch_bytes: main}
            self._table.start_again()
        self.watch = TopicWatch(main, (), self._settings.topic_check_seconds, on_recreated=self._topic_recreated)
        self._paused = False
        return before

    def transports(self) -> Sequence[BoundedProducer]:
        """The clients in use."""
        return tuple(self._by_batch_bytes.values())

    def pause(self) -> None:
        """Hand nothing over from now on. What waits for a limit is refused; what comes later waits for another client,
        or is refused once the table is shut."""
        self.watch.stop()
        with self._lock:
            self.ready = {}
            self._paused = True
            questions, self._questions = self._questions, {}
        for question in questions.values():
            self._refuse(question.bulks, _not_sent())

    def release(self, transports: Sequence[BoundedProducer] | None = None) -> None:
        """Close clients that are not used any more (``None``: those that were in use)."""
        if transports is None:
            transports, self._by_batch_bytes = self.transports(), {}
        for transport in transports:
            transport.close(CLOSE_SECONDS / len(transports))
        self.guard.unpin(transports)

    # What the clients say

    def _on_error(self, error: TransportError) -> None:
        """Note a client-wide error. The client's poll calls it, or a thread with a request."""
        table, clients = self._table, self.transports()
        table.note_trouble(error)
        if error.fatal:
            table.finished = error
            for client in clients:
                client.purge()  # the next polls bring what it had
            if any(client.poisoned for client in clients):
                table.give_up_bulks(table.unfinished(), Outcome.UNKNOWN, DeliveryRefused(error, permanent=False))

    def _on_undelivered(self, error: TransportError) -> None:
        """Note what a client says of one message."""
        if isinstance(error, FatalError):
            self._table.last_error = error  # no message fares better
        if error.name == "MSG_SIZE_TOO_LARGE":
            self.forget()  # some topic's limit was lowered since it was asked for

    def refusal(self, limit: TopicLimit, error: Exception) -> DeliveryRefused:
        """The error of a message that its client did not take: it is definitely not in the log."""
        fault = limit.transport.fault(error)
        if limit.transport in self.transports():
            self._on_undelivered(fault)
        return DeliveryRefused(fault, permanent=False)

    # The limits

    def wait_for(self, bulk: Bulk) -> TopicLimit | None:
        """The limit of the bulk's topic; `None`: it waits for that, or was refused."""
        topic = bulk.topic
        if not is_topic_name(topic):
            cause = TransportError(
                f"{topic!r} is not the name of a topic: {TOPIC_NAME_RULE}", code=17, name="TOPIC_EXCEPTION"
            )
            self._refuse((bulk,), DeliveryRefused(cause, permanent=True))
            return None
        with self._lock:
            limit = self.ready.get(topic)
            if limit is not None:
                return limit
            is_shut = self._table.shut_down
            if not is_shut:
                question = self._questions.setdefault(topic, _Question())
                if not question.bulks:
                    question.impatient_at = self.main.clock.monotonic() + _PATIENCE_SECONDS
                    question.again_at = 0.0
                question.bulks.append(bulk)
        if is_shut:
            self._refuse((bulk,), _not_sent())
        return None

    def ask(self) -> None:
        """Request the limits that are due, unless enough requests are out. The serving thread calls it regularly."""
        if not self._questions:
            return
        with self._lock:
            now = time.monotonic()
            due = {topic: question for topic, question in self._questions.items() if question.again_at <= now}
            if not due or self._paused or self._requests == _MOST_REQUESTS:
                return
            for question in due.values():
                question.again_at = math.inf
            try:
                self._start(due)
                self._requests += 1
            except RuntimeError as error:  # the process has as many threads as it may
                for topic, question in due.items():
                    cause = TransportError(f"the limit of topic {topic!r} cannot be asked for: {error}")
                    del self._questions[topic]
                    self._refuse(question.bulks, DeliveryRefused(cause, permanent=False))

    def _start(self, questions: Mapping[str, _Question]) -> None:
        threading.Thread(target=self._request, args=(questions,), name="kafka-topic-limits", daemon=True).start()

    def _request(self, questions: Mapping[str, _Question]) -> None:
        """The body of a thread with one request."""
        with self._table.as_caller():
            answers = self._ask(questions)
            for topic, question in questions.items():
                try:
                    level, text = self._answered(topic, question, answers[topic])
                except Exception:  # messages to the other topics wait for this thread
                    LOG.exception("the limit of topic %r could not be used", topic)
                else:
                    if text:  # without the lock, for which a log handler would keep others waiting
                        LOG.log(level, "topic %r: %s", topic, text)
            with self._lock:
                self._requests -= 1

    def _ask(self, topics: Iterable[str]) -> Mapping[str, int | TransportError]:
        """Each topic's limit, or why it is not known."""
        try:
            return self.main.max_message_bytes(topics, _ASK_SECONDS)
        except TransportError as error:
            return dict.fromkeys(topics, error)
        except Exception as error:  # messages wait for this thread
            LOG.exception("asking for the limits of topics failed")
            return dict.fromkeys(topics, RetriableError(repr(error)))

    def _answered(self, topic: str, question: _Question, answer: int | TransportError) -> tuple[int, str]:
        """Note a limit, or the configured one where the topic's is not known; returns what to log. Without an answer it
        is requested again, and bulks wait for it for a while."""
        level, text = logging.INFO, ""
        with self._lock:
            if self._questions.get(topic) is not question:
                return level, text  # of a client that was replaced
            if isinstance(answer, RetriableError | AuthenticationError):  # a broker that restarts may refuse a login
                self._table.note_trouble(answer)
                is_patient = self.main.clock.monotonic() < question.impatient_at
                question.again_at = time.monotonic() + (_ASK_AGAIN_SOON_SECONDS if is_patient else _ASK_AGAIN_SECONDS)
                if is_patient:
                    return level, text
                level = logging.WARNING
            else:
                del self._questions[topic]
            max_bytes = answer if isinstance(answer, int) else self._settings.max_message_bytes
            if not isinstance(answer, int):
                text = f"its limit is not known ({answer}); [kafka] max_message_bytes ({max_bytes}) is used instead"
            bulks, question.bulks = question.bulks, []
            try:
                limit = self._limit(topic, max_bytes)
            except Exception as error:  # as above; the next message asks again
                cause = error if isinstance(error, TransportError) else TransportError(repr(error))
                self._refuse(bulks, DeliveryRefused(cause, permanent=False))
                return logging.WARNING, f"no client could be opened for it: {error}"
            for bulk in bulks:
                self._hand_over(limit, bulk)
            self.ready[topic] = limit
            self.watch.add(topic)
        return level, text

    def _limit(self, topic: str, max_bytes: int) -> TopicLimit:
        refusal = None
        batch_bytes = min(max_bytes, self._batch_bytes)
        transport = self._by_batch_bytes.get(batch_bytes)
        if transport is None and self._settings.transactional_id is not None:
            cause = TransportError(
                f"topic {topic!r} takes batches of {max_bytes} bytes at most, and a transaction's one client makes "
                f"larger ones: set [kafka] max_message_bytes to {max_bytes}, or raise the topic's max.message.bytes"
            )
            transport, max_bytes, refusal = self.main, 0, DeliveryRefused(cause, permanent=True)
        elif transport is None:
            transport = self.open_client(batch_bytes)
            self._by_batch_bytes = {**self._by_batch_bytes, batch_bytes: transport}
        now = self.main.clock.monotonic()
        nothing = transport.new_reservation(0, 0, 0, 0, 0, None)
        return TopicLimit(transport, max_bytes, nothing, transport.send_is_atomic, now, refusal)

    def forget(self, topic: str | None = None) -> None:
        """Ask for the topic's limit (``None``: every topic's) again at the next message."""
        if topic is None:
            self.ready.clear()
        else:
            self.ready.pop(topic, None)

    def forget_if_old(self, topic: str, limit: TopicLimit) -> None:
        if self.main.clock.monotonic() - limit.known_at > _ASK_AGAIN_SECONDS:
            self.forget(topic)

    def _topic_recreated(self, found: TopicRecreated) -> None:
        self.recreated_topics += 1
        LOG.error(
            "topic %r, which this producer writes to, was deleted and recreated (id %s is now %s): what was "
            "acknowledged shortly before may be gone with the old topic, and its readers stop until `monasca-common "
            "offsets reset`",
            found.topic,
            found.old_id,
            found.new_id,
        )
        self.forget(found.topic)

    def _refuse(self, bulks: Iterable[Bulk], error: DeliveryError) -> None:
        self._table.give_up_bulks(bulks, Outcome.FAILED, error)


def _not_sent() -> DeliveryAbandoned:
    return DeliveryAbandoned("closed before the topic's brokers could be reached; it was not sent")
