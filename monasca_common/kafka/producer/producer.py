# SPDX-License-Identifier: Apache-2.0
"""`KafkaProducer`: hands messages to Kafka and reports the outcome of each.

The journey of a message: it is *checked* (`outgoing`), *reserved* (`Table`: a sequence and room in the budget), *handed
over* to the client of its topic (`TopicLimits`), and *settled* by its outcome, or when it is given up (`Table`). The
serving thread (`Serving`) takes outcomes in; a caller waits in `publish`, `retry`, `flush` or `close`.

An exception from a signal handler, such as Ctrl-C, may end any of these calls. The messages of that call are then
*unknown*: the next `flush`, or `close`, reports them, and `retry` of that report is safe.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType

from monasca_common.kafka.errors import (
    ClosedError,
    ConfigurationError,
    DeliveryAbandoned,
    DeliveryRefused,
    FatalError,
    MisuseError,
    TransportError,
    UndeliveredReport,
    WrongType,
)
from monasca_common.kafka.message import Headers, Record
from monasca_common.kafka.old_arguments import RefusesOldArguments
from monasca_common.kafka.producer import forgotten
from monasca_common.kafka.producer.client import Client
from monasca_common.kafka.producer.delivery_counts import DeliveryCounter
from monasca_common.kafka.producer.health import ProducerHealth
from monasca_common.kafka.producer.outcome import DeliveryListener, Outcome
from monasca_common.kafka.producer.outgoing import (
    PLAIN_OVERHEAD_BYTES,
    PlainBulk,
    as_list,
    checked,
    new_id_prefix,
    plain_bulk,
)
from monasca_common.kafka.producer.report import DeliveryReport, checked_report
from monasca_common.kafka.producer.serving import Serving
from monasca_common.kafka.producer.table import DeliveryAttempt, SequenceRange, Table, next_attempt
from monasca_common.kafka.producer.topic_limits import OpenTransport, TopicLimit, TopicLimits
from monasca_common.kafka.producer.transaction import Transaction
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ProducerTransport, message_id

LOG = logging.getLogger(__name__)

_GRACE_SECONDS = 0.5
_LONGEST_SECONDS = 1e8  # three years; infinity is too much for locks
_INTERRUPTED = "the call that sent it was interrupted"
# Two retries of one report, even by two producers, must not both find the same message worth sending.
_RETRYING = threading.Lock()
os.register_at_fork(before=_RETRYING.acquire, after_in_parent=_RETRYING.release, after_in_child=_RETRYING.release)


class KafkaProducer(RefusesOldArguments):
    """Thread-safe; one instance serves a whole process. A context manager that closes itself.

    An outcome never raises: only misuse does (`MisuseError`), and `send` when there is no room (`QueueFull`).
    """

    def __init__(self, settings: ProducerSettings, open_transport: OpenTransport) -> None:
        """``open_transport(batch_bytes, on_error)`` opens a client whose batches hold at most ``batch_bytes``."""
        self.settings = settings
        self._closed = False
        self._closing = threading.RLock()
        self._reopening = threading.RLock()  # a close does not wait for it
        self._final: DeliveryReport | None = None
        self._transactions_ready = False
        self._table = Table(new_id_prefix(), max_messages=settings.budget_messages, max_bytes=settings.budget_bytes)
        self._client = Client(settings, self._table, open_transport, self._on_error)
        self._guard = self._client.guard
        self._clock = self._client.limits.main.clock
        self._table.use_clock(self._clock)
        self._table.on_undelivered = self._on_undelivered
        self._serving = Serving(self._table, self._clock, self._client.transports, settings.eager_callers)
        self._client.use(self._client.limits, self._serving.wake)
        forgotten.remember(self)

    def publish(
        self,
        topic: str,
        records: Iterable[bytes | Record],
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timeout: float | None = None,
    ) -> DeliveryReport:
        """Send a bulk and wait for its outcome.

        ``key`` and ``headers`` apply to records that have none of their own (headers are put before a record's).
        ``timeout`` in seconds, ``None``: ``[kafka] publish_timeout_seconds``. What has no answer by then is *unknown*
        and still on its way: give the report to `retry`, never the records to `publish` again.
        """
        limit = self._client.ready.get(topic)  # none in a child of a fork, and once the producer is closed
        listed = records if type(records) is list else as_list(records)
        if limit is not None and not headers and threading.get_ident() != self._serving.listening_thread_id:
            plain = plain_bulk(listed, key, limit.max_bytes)
            if plain is not None:
                return self._publish_bytes(topic, plain, key, limit, self._deadline(timeout))
        self._check("publish")
        self._table.tick()
        deadline = self._deadline(timeout)
        return self._publish([self._attempt(topic, record, key, headers) for record in listed], deadline)

    def retry(self, report: UndeliveredReport, *, timeout: float | None = None) -> DeliveryReport:
        """The same messages under the same ids: waits for those still on their way, sends again what failed or was
        given up, and keeps what was delivered or can never be accepted. Safe to call again with any earlier report.
        """
        self._check("retry")
        self._table.tick()
        earlier = checked_report(report)
        deadline = self._deadline(timeout)
        fresh: list[DeliveryAttempt] = []
        try:
            with _RETRYING:
                for old in earlier.latest().values():
                    if old.is_worth_sending:
                        again = next_attempt(old)
                        old.successor = again
                        fresh.append(again)
            for portion in self._portions(fresh):
                self._hand_over(portion, deadline)
            latest = earlier.latest()
            self._wait_for(latest.values(), deadline)
            return earlier.with_attempts(latest)
        except BaseException:
            self._table.abandon_attempts(fresh, DeliveryAbandoned(_INTERRUPTED))
            raise

    def send(
        self,
        topic: str,
        record: bytes | Record,
        *,
        key: bytes | None = None,
        on_delivery: DeliveryListener | None = None,
    ) -> bytes | None:
        """Hand one message over without waiting for its outcome; returns its id (``None`` where ids are off).

        ``on_delivery`` gets the `Delivery`, on a thread of the library; `flush` and `close` report the rest. Waits only
        for room in the budget, never inside a delivery callback; raises `QueueFull` when there is none.
        """
        limit = self._client.ready.get(topic)
        if limit is None or type(record) is not bytes or on_delivery is not None:
            return self._send(topic, record, key, on_delivery)
        size = len(record) + PLAIN_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes:
                return self._send(topic, record, key, on_delivery)
            size += len(key)
        table, sequence = self._table, -1
        try:
            with table.lock:  # no call in this block: no signal handler interrupts it
                span = limit.span
                if (
                    span.next < span.end
                    and size <= limit.max_bytes
                    and table.messages < table.max_messages
                    and table.bytes + size <= table.max_bytes
                ):
                    sequence = span.next
                    span.next = sequence + 1
                    span.bytes += size
                    table.messages += 1
                    table.bytes += size
            if sequence < 0:
                with table.lock:
                    sequence = self._reserve_send(topic, limit, size)
                if sequence < 0:
                    return self._send(topic, record, key, None)
            message_id = limit.send(topic, record, key, sequence, limit.id_prefix)
        except limit.transport.refusals as error:
            if sequence < 0:
                raise
            return self._refuse_send(limit, sequence, Record(record, key), error)
        except BaseException:
            if sequence >= 0:
                table.give_up_send(sequence, Record(record, key), Outcome.UNKNOWN, DeliveryAbandoned(_INTERRUPTED))
            raise
        if self._serving.idle:
            self._serving.wake()
        return message_id

    def flush(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for the sends that no flush has reported yet, ``timeout`` seconds at most.

        The report has those that are not delivered, and counts those that are. It does not list what an
        ``on_delivery`` receives.
        """
        self._check("flush")
        deadline = self._deadline(timeout)
        sends = self._table.sends()
        self._wait_for(sends, deadline)
        return self._flushed(sends)

    def close(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for what is on its way, give up what remains after ``timeout`` seconds, release the client.

        Takes at most ``timeout`` + 1 s. The report is `flush`'s, with what was given up as *unknown*. Closing again
        returns the same report.
        """
        self._guard.check()
        self._serving.refuse_inside_listener("close")
        deadline = self._deadline(timeout)
        with self._closing:  # another thread that closes waits for the first one's report
            if self._final is None:
                self._closed = True
                self._client.detach()
                self._table.shut()
                self._wait_for(self._table.spans(), deadline)
                self._give_up(DeliveryAbandoned("the producer was closed before an answer came"))
                if self._final is None:  # else a signal handler closed it meanwhile
                    self._final = self._flushed(())
                    self._serving.stop(max(deadline - self._clock.monotonic(), _GRACE_SECONDS / 2))
                    self._release(self._client.limits)
            return self._final

    @property
    def is_closed(self) -> bool:
        """Whether `close` has settled all messages."""
        return self._final is not None

    def reopen(self) -> None:
        """Go on with another client after a fatal error (`ProducerHealth.finished`): the same ids, the same budget.

        What is on its way is reported as *unknown*; reports can be retried again. With a transactional id the new
        client first takes that over, which ends a transaction that was open. Raises `TransportError` where that fails,
        and `ConfigurationError`; then nothing has changed. Raises `ClosedError` if the producer is closed meanwhile.
        """
        self._guard.check()
        self._serving.refuse_inside_listener("reopen")
        with self._reopening:
            self._check_open("reopen")
            limits = self._client.open_another()
            try:
                if self.settings.transactional_id is not None:
                    limits.main.init_transactions(self.settings.transaction_timeout_seconds)
            except BaseException:
                self._release(limits)
                raise
            LOG.warning("the producer goes on with another client; the last error: %s", self._table.last_error)
            with self._closing:
                if self._closed:
                    self._release(limits)
                else:
                    self._transactions_ready = self.settings.transactional_id is not None
                    self._replace(limits)
            self._check_open("reopen")

    def count_deliveries(self, bucket_seconds: int) -> DeliveryCounter:
        """Count delivered messages from now on, by topic and bucket of their timestamps, for an audit. Call it once,
        before anything is sent. A message of a transaction counts once that is committed; one that is sent again by
        `retry` once, when it is delivered. Raises `MisuseError` for a second call, and where it comes too late."""
        if self._serving.counter is not None or self._client.ready or self._table.busy:
            raise MisuseError("count_deliveries: call it once, before anything is sent")
        self._client.count(bucket_seconds)
        self._serving.counter = DeliveryCounter()
        return self._serving.counter

    def transaction(self) -> Transaction:
        """A context manager: what is sent in it, and the offsets committed in it, become visible together or not at
        all. Needs ``[kafka] transactional_id``; one at a time."""
        self._check("transaction")
        if not self._transactions_ready:
            self.init_transactions()
        return Transaction(self, self._client.limits.main, self._serving.counter)

    def uses(self, transport: ProducerTransport) -> bool:
        """Whether messages go to this client: not any more once it was reopened."""
        return self._client.limits.main is transport

    def init_transactions(self, timeout: float | None = None) -> None:
        """Fence an earlier producer with this ``transactional_id``, and end the transaction that it left open.

        `transaction` calls it if it was not called. Call it before a consumer starts that reads on from what the one
        before committed. ``timeout`` in seconds, ``None``: ``transaction_timeout_seconds``. Raises `RetriableError`
        without an answer by then: call it again, it goes on where it was.
        """
        self._check("init_transactions")
        if self.settings.transactional_id is None:
            raise ConfigurationError("a transaction needs [kafka] transactional_id, unique to each running process")
        seconds = self.settings.transaction_timeout_seconds if timeout is None else timeout
        self._client.limits.main.init_transactions(seconds)
        self._transactions_ready = True

    def health(self) -> ProducerHealth:
        table = self._table
        return ProducerHealth(
            outstanding_messages=table.messages_in_flight,
            outstanding_bytes=table.bytes,
            oldest_unacknowledged_seconds=table.oldest_age(),
            last_error=table.last_error,
            failed_listeners=self._serving.failed_listeners,
            recreated_topics=self._client.limits.recreated_topics,
            oldest_call_seconds=self._client.oldest_call_seconds(),
            poisoned=self._client.poisoned,
            finished=table.finished is not None,
            driver=self._client.limits.main.driver,
        )

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = self._final is not None
        report = self.close()
        if not (report.ok or told):  # nobody gets this report
            left, unknown = len(report.failed) + len(report.unknown), len(report.unknown)
            LOG.error(
                "a producer was closed with %d messages that are not delivered (%d of them unknown)", left, unknown
            )

    # At the interpreter's exit, for `forgotten`

    def is_ours_to_close(self) -> bool:
        return not (self._closed or self._guard.forked)

    def is_busy(self) -> bool:
        return self._table.busy

    def close_at_exit(self) -> Mapping[str, int]:
        report = self.close(0)
        return Counter(delivery.topic for delivery in (*report.failed, *report.unknown))

    # Reserved and handed over

    def _attempt(self, topic: str, record: bytes | Record, key: bytes | None, headers: Headers = ()) -> DeliveryAttempt:
        full, own_id, size = checked(topic, record, key, headers, verbatim=self.settings.verbatim)
        wants_id = not (self.settings.verbatim or topic in self.settings.topics_without_message_id)
        return DeliveryAttempt(topic, full, own_id, size, own=own_id is not None, wants_id=wants_id)

    def _publish_bytes(
        self, topic: str, plain: PlainBulk, key: bytes | None, limit: TopicLimit, deadline: float
    ) -> DeliveryReport:
        """`publish` of bytes to a topic whose limit is known: no message has an object of its own."""
        span = None
        try:
            with self._table.lock:
                if self._client.ready.get(topic) is limit:
                    span = self._table.reserve_bulk(topic, plain.values, key, limit.id_prefix, plain.size)
            if span is None:
                return self._publish([self._attempt(topic, value, key) for value in plain.values], deadline)
            self._produce(limit, span)
            self._serving.wait(span.latch, deadline - self._clock.monotonic())
            return DeliveryReport({} if span.is_delivered else self._table.undelivered_of(span), span=span)
        except BaseException:
            if span is not None:
                self._table.abandon_bulk(span, DeliveryAbandoned(_INTERRUPTED))
            raise

    def _produce(self, limit: TopicLimit, span: SequenceRange) -> None:
        try:
            accepted = limit.produce(span.topic, span.values, span.key, span.first, limit.id_prefix)
        except limit.transport.refusals:
            accepted = 0
        if accepted < len(span.values):
            self._client.limits.produce_rest(limit, span, accepted)

    def _publish(self, attempts: Sequence[DeliveryAttempt], deadline: float) -> DeliveryReport:
        try:
            reserved = self._hand_over(attempts, deadline)
            self._wait_for(reserved, deadline)
            return DeliveryReport(dict(enumerate(reserved)))
        except BaseException:
            self._table.abandon_attempts(attempts, DeliveryAbandoned(_INTERRUPTED))
            raise

    def _hand_over(self, attempts: Sequence[DeliveryAttempt], deadline: float) -> Sequence[DeliveryAttempt]:
        """Hand messages over as soon as there is room for all; the attempts that are in flight, as `Table.reserve`."""
        reserved = self._reserve(attempts, deadline)
        if reserved is None:
            return self._table.refuse(attempts)
        self._client.limits.launch([attempt for attempt in attempts if attempt.table is not None])
        return reserved

    def _reserve(self, attempts: Sequence[DeliveryAttempt], deadline: float) -> list[DeliveryAttempt] | None:
        table = self._table
        while (reserved := table.reserve(attempts)) is None:
            messages, size = table.room_of(attempts)
            if not table.can_fit(messages, size):
                return None
            room = table.ask_for_room(messages, size)
            try:
                if not self._serving.wait(room, deadline - self._clock.monotonic()):
                    return table.reserve(attempts)
            finally:
                table.stop_asking(room)
        return reserved

    def _portions(self, attempts: Sequence[DeliveryAttempt]) -> Iterator[Sequence[DeliveryAttempt]]:
        """All of them if the budget has room for so much, else in parts of a quarter of it, which wait for less."""
        table = self._table
        if table.can_fit(len(attempts), sum([attempt.size for attempt in attempts])):
            yield attempts
            return
        portion: list[DeliveryAttempt] = []
        size = 0
        for attempt in attempts:
            if portion and not table.can_fit(4 * (len(portion) + 1), 4 * (size + attempt.size)):
                yield portion
                portion, size = [], 0
            portion.append(attempt)
            size += attempt.size
        yield portion

    def _reserve_send(self, topic: str, limit: TopicLimit, size: int) -> int:
        """The sequence of a plain send that needs another span; below 0: it needs a closer look. The lock is held."""
        if self._client.ready.get(topic) is not limit or size > limit.max_bytes:
            return -1
        return self._table.reserve_send(limit, topic, size)

    def _refuse_send(self, limit: TopicLimit, sequence: int, record: Record, error: Exception) -> bytes | None:
        """The client raised: it did not take the message, so the message is surely not in the log."""
        fault = limit.transport.fault(error)
        if limit.transport in self._client.transports():
            self._on_undelivered(fault)
        refused = DeliveryRefused(fault, permanent=False)
        self._table.give_up_send(sequence, record, Outcome.FAILED, refused)
        return None if limit.id_prefix is None else message_id(limit.id_prefix, sequence)

    def _send(
        self, topic: str, record: bytes | Record, key: bytes | None, on_delivery: DeliveryListener | None
    ) -> bytes | None:
        """`send` for everything but bare bytes to a known topic with room in the budget."""
        self._guard.check()
        self._check_open("send")
        self._table.tick()
        attempt = self._attempt(topic, record, key)
        attempt.for_flush = on_delivery is None
        if on_delivery is not None:
            attempt.listeners.append(on_delivery)
        patience = 0.0 if self._serving.is_inside_listener() else self.settings.publish_timeout_seconds
        try:
            reserved = self._reserve((attempt,), self._clock.monotonic() + patience)
            if attempt.table is not None:  # else its id is in flight already, or there is no room
                self._client.limits.launch((attempt,))
        except BaseException:
            self._table.abandon_attempts((attempt,), DeliveryAbandoned(_INTERRUPTED))
            raise
        if reserved is None:
            self._check_open("send")
            raise self._table.why_no_room((attempt,))
        if self._serving.idle:
            self._serving.wake()
        return attempt.message_id

    # Settled

    def _wait_for(self, what: Collection[SequenceRange | DeliveryAttempt], deadline: float) -> None:
        """Wait until all of these are settled, or the deadline."""
        latch = self._table.latch_on(what)
        try:
            self._serving.wait(latch, deadline - self._clock.monotonic())
        finally:
            if not latch.open:
                self._table.take_off(latch, what)

    def _flushed(self, sends: Iterable[SequenceRange]) -> DeliveryReport:
        table = self._table
        delivered, undelivered, in_flight = 0, list[DeliveryAttempt](), list[DeliveryAttempt]()
        try:
            with table.lock:
                delivered, undelivered, in_flight = table.take_report(sends)
                table.reported(in_flight)
            return DeliveryReport(dict(enumerate([*undelivered, *in_flight])), delivered_before=delivered)
        except BaseException:
            table.restore_report(delivered, [*undelivered, *in_flight])
            raise

    def _give_up(self, error: DeliveryAbandoned) -> None:
        """Settle everything without the brokers. The client gives the bytes back of what it is told to give up."""
        limits = self._client.limits
        limits.abandon()
        if self._table.busy:
            for transport in limits.transports():
                transport.purge()
            self._wait_for(self._table.spans(), self._clock.monotonic() + _GRACE_SECONDS / 2)
        self._table.abandon(self._table.spans(), error)

    def _replace(self, limits: TopicLimits) -> None:
        """Use another client, and release the one before."""
        before = self._client.limits
        self._client.detach()
        self._give_up(DeliveryAbandoned("the producer was reopened before an answer came"))
        hangs = self._client.oldest_call_seconds() > 0  # perhaps a call of the serving thread
        if hangs:
            self._serving.retire()
        self._client.in_use = False  # what the old client still says does not count
        self._table.start_again()
        limits.recreated_topics = before.recreated_topics
        self._client.use(limits, self._serving.wake)
        if hangs:
            self._serving.start()
        self._release(before)

    def _release(self, limits: TopicLimits) -> None:
        limits.abandon()
        self._client.close(limits.release(), _GRACE_SECONDS)

    # Waiting and checking

    def _deadline(self, timeout: float | None) -> float:
        seconds = self.settings.publish_timeout_seconds if timeout is None else timeout
        if not isinstance(seconds, int | float) or math.isnan(seconds):
            raise WrongType(f"timeout: a time-out is a number of seconds, or None, not {timeout!r}")
        return self._clock.monotonic() + min(seconds, _LONGEST_SECONDS)

    def _check(self, call: str) -> None:
        self._guard.check()
        self._serving.refuse_inside_listener(call)
        self._check_open(call)

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(f"{call} on a producer that was closed")

    # The client, and what it says

    def _on_error(self, error: TransportError) -> None:
        """Note a client-wide error. The client's poll calls it, or a thread with a request."""
        table = self._table
        table.note_trouble(error)
        if error.fatal:
            table.finished = error
            self._client.detach()  # no `send` uses it without a closer look
            if self._client.poisoned:
                self._client.limits.ready.clear()  # they lead around `BoundedProducer`
                table.abandon(table.spans(), DeliveryRefused(error, permanent=False))
            else:
                for transport in self._client.transports():
                    transport.purge()  # the next polls bring what it had

    def _on_undelivered(self, error: TransportError) -> None:
        """Note what the client says of one message."""
        if isinstance(error, FatalError):
            self._table.last_error = error  # no message fares better
        if error.name == "MSG_SIZE_TOO_LARGE":
            self._client.limits.forget()  # some topic's limit was lowered since it was asked for
