# SPDX-License-Identifier: Apache-2.0
"""The clients of a producer, and the limits of its topics: which client takes a topic's messages, and how large ones.

Any rejection by the broker bumps the idempotent epoch of the whole client and may double its neighbours, so a
message that is too large must not be sent at all. The topic's limit is asked for once; what is handed over
before the answer waits here, in order. A topic with a small limit gets a client whose batches stay below it.

Limits are requested together: one request names all topics that are due. While it is out, a topic that comes starts the
next one at once; when `_MOST_REQUESTS` are out, those that come wait for the first to return and share a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryAbandoned,
    DeliveryRefused,
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


@dataclass(slots=True)
class _Question:
    """A topic whose limit is not known. ``again_at`` is real time, which passes for every clock."""

    impatient_at: float = 0.0
    again_at: float = 0.0
    out: bool = False  # in a request that has no answer yet


class TopicLimits:
    """``ready`` has the limits that are known. It is empty in a child of a fork, so that `send` checks the guard there,
    while another client takes the place of the one before, and once the producer is closed."""

    def __init__(
        self,
        settings: ProducerSettings,
        table: Table,
        open_transport: OpenTransport,
        *,
        hand_over: Callable[[TopicLimit, Bulk], None],
        on_error: Callable[[TransportError], None],
    ) -> None:
        """``hand_over`` is called for each bulk that waited, once the limit of its topic is known; ``on_error`` for the
        client-wide errors of the clients in use."""
        self.ready: dict[str, TopicLimit] = {}
        self.guard = ForkGuard("KafkaProducer", in_child=self.forget)
        self.recreated_topics = 0  # how often one of these topics was found deleted and recreated
        self._table = table
        self._settings = settings
        self._open_transport = open_transport
        self._hand_over = hand_over
        self._on_error = on_error
        self.tap = None if settings.tap is None else settings.tap()
        self._lock = threading.RLock()  # a signal handler that sends may interrupt its owner
        self._waiting: dict[str, list[Bulk]] = {}
        self._questions: dict[str, _Question] = {}
        self._askers = 0  # threads
        self._paused = False
        self._refuses = False  # what comes while it is paused
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
        with self._lock:
            self._paused = self._refuses = False
        self.ask()
        return before

    def transports(self) -> Sequence[BoundedProducer]:
        """The clients in use."""
        return tuple(self._by_batch_bytes.values())

    def uses(self, transport: ProducerTransport) -> bool:
        return self.main is transport and not self._paused

    def pause(self, *, for_good: bool = False) -> None:
        """Hand nothing over from now on. What waits for a limit is refused; what comes later waits for another client,
        except for good, and with transactions: it would become part of the next one."""
        self.watch.stop()
        with self._lock:
            self.ready = {}
            self._paused = True
            self._refuses = for_good or self._settings.transactional_id is not None
            waiting, self._waiting = self._waiting, {}
            self._questions = {}
        for bulks in waiting.values():
            self._table.give_up_bulks(bulks, Outcome.FAILED, _not_sent())

    def release(self, transports: Sequence[BoundedProducer] | None = None) -> None:
        """Close clients that are not used any more (``None``: those that were in use)."""
        if transports is None:
            transports, self._by_batch_bytes = self.transports(), {}
        for transport in transports:
            transport.close(CLOSE_SECONDS / len(transports))
        self.guard.unpin(transports)

    # The limits

    def wait_for(self, bulk: Bulk) -> TopicLimit | None:
        """The limit of the bulk's topic; `None`: it waits for that, or was refused."""
        topic = bulk.topic
        if not is_topic_name(topic):
            cause = TransportError(
                f"{topic!r} is not the name of a topic: {TOPIC_NAME_RULE}", code=17, name="TOPIC_EXCEPTION"
            )
            self._refuse((bulk,), cause, permanent=True)
            return None
        with self._lock:
            limit = self.ready.get(topic)
            if limit is not None:
                return limit
            refused = self._refuses
            if not refused:
                self._wait(topic, bulk)
        if refused:
            self._table.give_up_bulks((bulk,), Outcome.FAILED, _not_sent())
        else:
            self.ask()
        return None

    def _wait(self, topic: str, bulk: Bulk) -> None:
        question = self._questions.setdefault(topic, _Question())
        if topic not in self._waiting:
            question.impatient_at = self.main.clock.monotonic() + _PATIENCE_SECONDS
            question.again_at = time.monotonic()
        self._waiting.setdefault(topic, []).append(bulk)

    def ask(self) -> None:
        """Request the limits that are due, unless enough requests are out."""
        if not self._questions:
            return
        with self._lock:
            if self._askers == _MOST_REQUESTS or not self._due():
                return
            try:
                self._start()
                self._askers += 1
                return
            except RuntimeError as error:  # the process has as many threads as it may
                cause = error
                refused, self._waiting, self._questions = self._waiting, {}, {}
        for topic, bulks in refused.items():
            self._refuse(bulks, TransportError(f"the limit of topic {topic!r} cannot be asked for: {cause}"))

    def _due(self) -> dict[str, _Question]:
        now = time.monotonic()
        idle = {topic: question for topic, question in self._questions.items() if not question.out}
        return {topic: question for topic, question in idle.items() if question.again_at <= now and not self._paused}

    def _start(self) -> None:
        threading.Thread(target=self._run, name="kafka-topic-limits", daemon=True).start()

    def _run(self) -> None:
        """The body of a thread that requests limits while any are due."""
        with self._table.as_caller():
            while questions := self._next_questions():
                for topic, limit in self._ask(questions).items():
                    try:
                        problem = self._answered(topic, questions[topic], limit)
                    except Exception:  # messages to the other topics wait for this thread
                        LOG.exception("the limit of topic %r could not be used", topic)
                    else:
                        if problem:  # without the lock, for which a log handler would keep others waiting
                            LOG.warning("topic %r: %s", topic, problem)

    def _next_questions(self) -> dict[str, _Question]:
        """Those that are due; none: this thread is not needed any more."""
        with self._lock:
            due = self._due()
            for question in due.values():
                question.out = True
            self._askers -= not due
            return due

    def _ask(self, topics: Iterable[str]) -> Mapping[str, int | None]:
        """Each topic's limit, or the configured one if the topic's cannot be read; ``None``: no answer yet."""
        main = self.main
        try:
            answers = main.max_message_bytes(topics, _ASK_SECONDS)
        except TransportError as error:
            answers = dict.fromkeys(topics, error)
        except Exception as error:  # this thread must live: messages wait for it
            LOG.exception("asking for the limits of topics failed")
            answers = dict.fromkeys(topics, RetriableError(f"{type(error).__name__}: {error}"))
        for answer in {str(answer): answer for answer in answers.values()}.values():  # once, however many topics
            if isinstance(answer, RetriableError | AuthenticationError) and self.uses(main):
                self._on_error(answer)
        return {topic: self._max_bytes(topic, answer) for topic, answer in answers.items()}

    def _max_bytes(self, topic: str, answer: int | TransportError) -> int | None:
        if isinstance(answer, int):
            return answer
        if isinstance(answer, RetriableError | AuthenticationError):
            return None  # a broker that restarts may refuse a login, or TLS
        fallback = self._settings.max_message_bytes
        why = "may not be read" if isinstance(answer, AuthorizationError) else f"is not known ({answer})"
        LOG.info("the limit of topic %r %s; [kafka] max_message_bytes (%d) is used instead", topic, why, fallback)
        return fallback

    def _answered(self, topic: str, question: _Question, limit: int | None) -> str:
        """Note a limit; returns what to log. With ``None`` it is requested again; after a while, waiting messages use
        the configured limit."""
        problem = ""
        with self._lock:
            if self._questions.get(topic) is not question:
                return problem  # of a client that was replaced
            if limit is not None:
                del self._questions[topic]
                return self._know(topic, limit)
            pause = _ASK_AGAIN_SOON_SECONDS if topic in self._waiting else _ASK_AGAIN_SECONDS
            if topic in self._waiting and self.main.clock.monotonic() >= question.impatient_at:
                fallback = self._settings.max_message_bytes
                problem = self._know(topic, fallback) or f"no answer about its limit; {fallback} is used instead"
                pause = _ASK_AGAIN_SECONDS
            question.out = False
            question.again_at = time.monotonic() + pause
        return problem

    def _know(self, topic: str, max_bytes: int) -> str:
        waiting = self._waiting.pop(topic, [])
        try:
            limit = self._limit(topic, max_bytes)
        except Exception as error:  # as above; the next message asks again
            cause = error if isinstance(error, TransportError) else TransportError(f"{type(error).__name__}: {error}")
            self._refuse(waiting, cause)
            return f"no client could be opened for it: {error}"
        for bulk in waiting:
            self._hand_over(limit, bulk)
        self.ready[topic] = limit
        self.watch.add(topic)
        return ""

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

    def _refuse(self, bulks: Iterable[Bulk], cause: TransportError, *, permanent: bool = False) -> None:
        self._table.give_up_bulks(bulks, Outcome.FAILED, DeliveryRefused(cause, permanent=permanent))


def _not_sent() -> DeliveryAbandoned:
    return DeliveryAbandoned("closed before the topic's brokers could be reached; it was not sent")
