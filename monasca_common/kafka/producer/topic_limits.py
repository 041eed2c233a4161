# SPDX-License-Identifier: Apache-2.0
"""The limits of topics: the client and the largest message of each.

Any rejection by the broker bumps the idempotent epoch of the whole client and may double its neighbours, so a
message that is too large must not be sent at all. The topic's limit is asked for once; what is handed over
before the answer waits here, in order. A topic with a small limit gets a client whose batches stay below it.

Limits are requested together: one request names all topics that are due. While it is out, a topic that comes starts the
next one at once; when `_MOST_REQUESTS` are out, those that come wait for the first to return and share a request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    DeliveryAbandoned,
    DeliveryRefused,
    MessageTooLarge,
    RetriableError,
    TopicRecreated,
    TransportError,
)
from monasca_common.kafka.message import MESSAGE_ID_HEADER, TOPIC_NAME_RULE, is_topic_name
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.table import NO_RANGE, DeliveryAttempt, SequenceRange, Table, by_topic
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ANY_PARTITION, ProducerTransport
from monasca_common.kafka.transport.topic_watch import TopicWatch

LOG = logging.getLogger(__name__)

OpenTransport = Callable[[int, Callable[[TransportError], None]], ProducerTransport]

_CLIENT_BATCH_BYTES = 1_000_000  # librdkafka's own
_ASK_SECONDS = 5.0
_ASK_AGAIN_SOON_SECONDS = 0.1
_PATIENCE_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 30.0  # a limit may have been raised since a message was refused for it
_MOST_REQUESTS = 4  # each has a thread while it is out


@dataclass(slots=True, eq=False)
class TopicLimit:
    """The size of the largest message that a topic takes, and the client that keeps its batches below it."""

    transport: ProducerTransport
    send: Callable[..., bytes | None]  # the client's own: no Python frame between the producer and C
    produce: Callable[..., int]  # the same
    max_bytes: int
    id_prefix: bytes | None  # None: its messages have no ids
    known_at: float
    refusal: DeliveryRefused | None = None  # of every message; then ``max_bytes`` is 0
    span: SequenceRange = NO_RANGE  # of the next sends


@dataclass(slots=True)
class _Question:
    """A topic whose limit is not known. ``again_at`` is real time, which passes for every clock."""

    impatient_at: float
    again_at: float
    out: bool = False  # in a request that has no answer yet


class TopicLimits:
    def __init__(
        self,
        settings: ProducerSettings,
        table: Table,
        open_transport: OpenTransport,
        on_error: Callable[[TransportError], None],
    ) -> None:
        self.ready: dict[str, TopicLimit] = {}
        self.on_launch: Callable[[], None] = lambda: None  # called when what waited for a limit went to its client
        self._table = table
        self._settings = settings
        self._open_transport = open_transport
        self._on_error = on_error
        # Taken by itself where Ctrl-C may come: within a condition's own `__enter__` it would leave the lock taken. And
        # again by its owner, because a signal handler that closes may interrupt it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: dict[str, list[DeliveryAttempt]] = {}
        self._questions: dict[str, _Question] = {}
        self._askers = 0  # threads
        self._resting = False  # one of them waits until the next question is due
        self._closed = False
        self._batch_bytes = min(_CLIENT_BATCH_BYTES, settings.max_message_bytes)
        self.main = open_transport(self._batch_bytes, on_error)
        self._by_batch_bytes = {self._batch_bytes: self.main}
        self._transports: tuple[ProducerTransport, ...] = (self.main,)
        self.recreated_topics = 0  # how often one of these topics was found deleted and recreated
        self.watch = TopicWatch(self.main, (), settings.topic_check_seconds, on_recreated=self._topic_recreated)

    def transports(self) -> tuple[ProducerTransport, ...]:
        return self._transports

    def release(self) -> tuple[ProducerTransport, ...]:
        """Give up the clients, which the caller closes; no other thread gets them."""
        transports, self._transports = self._transports, ()
        return transports

    def launch(self, attempts: Iterable[DeliveryAttempt]) -> None:
        """Hand reserved messages to their clients, now or as soon as the limit of their topic is known."""
        for topic, of_topic in by_topic(attempts).items():
            self._launch(topic, of_topic)

    def _launch(self, topic: str, attempts: list[DeliveryAttempt]) -> None:
        limit = self.ready.get(topic)
        if limit is None:
            if not is_topic_name(topic):
                cause = TransportError(
                    f"{topic!r} is not the name of a topic: {TOPIC_NAME_RULE}", code=17, name="TOPIC_EXCEPTION"
                )
                self._refuse(attempts, cause, permanent=True)
                return
            with self._lock:
                limit = self.ready.get(topic)
                if limit is None and not self._closed:
                    self._wait_for_limit(topic, attempts)
                    return
        if limit is None:
            self._abandon(attempts)
            return
        self._produce(limit, attempts)

    def _wait_for_limit(self, topic: str, attempts: list[DeliveryAttempt]) -> None:
        if topic in self._waiting:
            self._waiting[topic] += attempts
            return
        self._waiting[topic] = list(attempts)
        out = topic in self._questions and self._questions[topic].out
        self._questions[topic] = _Question(
            self.main.clock.monotonic() + _PATIENCE_SECONDS, again_at=time.monotonic(), out=out
        )
        if self._resting:
            self._changed.notify()
        elif self._askers < _MOST_REQUESTS:
            try:
                self._start()
            except RuntimeError as error:  # the process has as many threads as it may
                del self._waiting[topic], self._questions[topic]
                self._refuse(attempts, TransportError(f"the limit of topic {topic!r} cannot be asked for: {error}"))
                return
            self._askers += 1

    def _start(self) -> None:
        threading.Thread(target=self._run, name="kafka-topic-limits", daemon=True).start()

    def _run(self) -> None:
        """The body of a thread that requests limits while any are due."""
        while topics := self._next_topics():
            for topic, limit in self._ask(topics).items():
                try:
                    self._answered(topic, limit)
                except Exception:  # this thread must live: messages to the other topics wait for it
                    LOG.exception("the limit of topic %r could not be used", topic)

    def _next_topics(self) -> list[str]:
        """The topics that are due, after a wait if no other thread waits; none: this thread is not needed any more."""
        with self._lock:
            while not self._closed:
                now = time.monotonic()
                idle = {topic: question for topic, question in self._questions.items() if not question.out}
                due = [topic for topic, question in idle.items() if question.again_at <= now]
                for topic in due:
                    self._questions[topic].out = True
                if due:
                    return due
                if not idle or self._resting:
                    break
                self._resting = True
                self._changed.wait(min(question.again_at for question in idle.values()) - now)
                self._resting = False
            self._askers -= 1
            return []

    def _ask(self, topics: Iterable[str]) -> Mapping[str, int | None]:
        """Each topic's limit, or the configured one if the topic's cannot be read; ``None``: no answer yet."""
        try:
            answers = self.main.max_message_bytes(topics, _ASK_SECONDS)
        except TransportError as error:
            answers = dict.fromkeys(topics, error)
        except Exception as error:  # this thread must live: messages wait for it
            LOG.exception("asking for the limits of topics failed")
            answers = dict.fromkeys(topics, RetriableError(f"{type(error).__name__}: {error}"))
        for answer in {str(answer): answer for answer in answers.values()}.values():  # once, however many topics
            if isinstance(answer, RetriableError | AuthenticationError):
                self._on_error(answer)
        return {topic: self._limit_in_bytes(topic, answer) for topic, answer in answers.items()}

    def _limit_in_bytes(self, topic: str, answer: int | TransportError) -> int | None:
        if isinstance(answer, int):
            return answer
        if isinstance(answer, RetriableError | AuthenticationError):
            return None  # a broker that restarts may refuse a login, or TLS
        fallback = self._settings.max_message_bytes
        if isinstance(answer, AuthorizationError):
            LOG.info("the limit of topic %r may not be read; [kafka] max_message_bytes (%d) stands in", topic, fallback)
        else:
            LOG.info("the limit of topic %r is not known (%s); %d stands in", topic, answer, fallback)
        return fallback

    def _answered(self, topic: str, limit: int | None) -> None:
        """Note a limit. With ``None`` it is requested again; after a while, waiting messages use the configured
        limit."""
        with self._lock:
            question = self._questions[topic]
            question.out = False
            if limit is not None:
                del self._questions[topic]
                self._know(topic, limit)
                return
            pause = _ASK_AGAIN_SOON_SECONDS if topic in self._waiting else _ASK_AGAIN_SECONDS
            if topic in self._waiting and self.main.clock.monotonic() >= question.impatient_at:
                fallback = self._settings.max_message_bytes
                LOG.warning("no answer about the limit of topic %r; %d stands in", topic, fallback)
                self._know(topic, fallback)
                pause = _ASK_AGAIN_SECONDS
            question.again_at = time.monotonic() + pause
            self._changed.notify()

    def _know(self, topic: str, max_bytes: int) -> None:
        waiting = self._waiting.pop(topic, [])
        if self._closed:
            return  # `abandon` has settled them
        try:
            limit = self._limit(topic, max_bytes)
        except Exception as error:  # as above; the next message asks again
            LOG.error("no client could be opened for topic %r: %s", topic, error)
            cause = error if isinstance(error, TransportError) else TransportError(f"{type(error).__name__}: {error}")
            self._refuse(waiting, cause)
            return
        self._produce(limit, waiting)
        self.ready[topic] = limit
        self.watch.add(topic)
        self.on_launch()

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

    def _limit(self, topic: str, max_bytes: int) -> TopicLimit:
        batch_bytes = min(max_bytes, self._batch_bytes)
        without_ids = self._settings.verbatim or topic in self._settings.topics_without_message_id
        id_prefix = None if without_ids else self._table.id_prefix
        now = self.main.clock.monotonic()
        if batch_bytes < self._batch_bytes and self._settings.transactional_id is not None:
            refusal = TransportError(
                f"topic {topic!r} takes batches of {max_bytes} bytes at most, and a transaction's one client makes "
                f"larger ones: set [kafka] max_message_bytes to {max_bytes}, or raise the topic's max.message.bytes"
            )
            return TopicLimit(
                self.main,
                self.main.send,
                self.main.produce,
                0,
                id_prefix,
                now,
                DeliveryRefused(refusal, permanent=True),
            )
        transport = self._by_batch_bytes.get(batch_bytes)
        if transport is None:
            transport = self._open_transport(batch_bytes, self._on_error)
            self._by_batch_bytes[batch_bytes] = transport
            self._transports = tuple(self._by_batch_bytes.values())
        return TopicLimit(transport, transport.send, transport.produce, max_bytes, id_prefix, now)

    def _produce(self, limit: TopicLimit, attempts: Iterable[DeliveryAttempt]) -> None:
        for attempt in attempts:
            record, message_id = attempt.record, attempt.message_id
            if attempt.outcome is not None or record is None:
                continue  # given up while it waited
            if attempt.size > limit.max_bytes:
                self._refuse_size(limit, attempt)
                continue
            own = () if message_id is None else ((MESSAGE_ID_HEADER, message_id),)
            partition = ANY_PARTITION if record.partition is None else record.partition
            headers, time_ms = (*record.headers, *own), record.timestamp_ms or 0
            try:
                limit.transport.produce_record(
                    attempt.topic, record.value, record.key, partition, time_ms, headers, attempt.sequence
                )
            except limit.transport.refusals as error:
                self._refuse((attempt,), limit.transport.fault(error))

    def produce_rest(self, limit: TopicLimit, span: SequenceRange, accepted: int) -> None:
        """Hand the rest of a bulk of bytes to its client, which did not take the message after ``accepted``."""
        self._produce(limit, [self._table.attempt(span, each) for each in range(span.first + accepted, span.end)])

    def _refuse_size(self, limit: TopicLimit, attempt: DeliveryAttempt) -> None:
        error = limit.refusal or MessageTooLarge(attempt.topic, attempt.size, limit.max_bytes)
        self._table.settle_locally((attempt,), Outcome.FAILED, error)
        if limit.transport.clock.monotonic() - limit.known_at > _ASK_AGAIN_SECONDS:
            self.forget(attempt.topic)

    def forget(self, topic: str | None = None) -> None:
        """Ask for the topic's limit (``None``: every topic's) again at the next message."""
        if topic is None:
            self.ready.clear()
        else:
            self.ready.pop(topic, None)

    def abandon(self) -> None:
        """Settle the messages that wait for a limit at a close: they were never handed to a client."""
        self.watch.stop()
        with self._lock:
            self._closed = True
            self.ready.clear()
            waiting = [attempt for attempts in self._waiting.values() for attempt in attempts]
            self._waiting.clear()
            self._changed.notify_all()
        self._abandon(waiting)

    def _abandon(self, attempts: Iterable[DeliveryAttempt]) -> None:
        error = DeliveryAbandoned("closed before the topic's brokers could be reached; it was not sent")
        self._table.settle_locally(attempts, Outcome.FAILED, error)

    def _refuse(self, attempts: Iterable[DeliveryAttempt], cause: TransportError, *, permanent: bool = False) -> None:
        self._table.settle_locally(attempts, Outcome.FAILED, DeliveryRefused(cause, permanent=permanent))
