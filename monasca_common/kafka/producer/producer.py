# SPDX-License-Identifier: Apache-2.0
"""`KafkaProducer`: sends messages to Kafka and reports the outcome of each.

The life of a message: it is *checked* (`outgoing`), *reserved* (`Table`: a sequence and room in the budget), *handed
over* to the client of its topic (`TopicLimits`), and *settled* by its outcome, or when it is abandoned (`Table`). The
serving thread (`Serving`) collects outcomes; a caller waits in `publish`, `retry`, `flush` or `close`.

An exception from a signal handler, such as Ctrl-C, can end any of these calls. The messages of that call are then
*unknown*: the next `flush`, or `close`, reports them, and a `retry` of that report is safe.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from monasca_common.kafka.errors import (
    ClosedError,
    ConfigurationError,
    DeliveryAbandoned,
    DeliveryError,
    DeliveryRefused,
    InCallbackError,
    MessageTooLarge,
    MisuseError,
    TransportError,
    UndeliveredReport,
    WrongType,
)
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers, Record
from monasca_common.kafka.outgoing import as_list, check, checked, new_id_prefix, plain_bulk, split
from monasca_common.kafka.producer.outcome import DeliveryListener, Outcome
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.serving import Serving
from monasca_common.kafka.producer.table import Bulk, DeliveryAttempt, Table, all_over, next_attempt
from monasca_common.kafka.producer.topic_limits import TopicLimit, TopicLimits
from monasca_common.kafka.safe_log import SafeLogger
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transaction import Transaction
from monasca_common.kafka.transport.base import ANY_PARTITION
from monasca_common.kafka.transport.bounded import BoundedProducer
from monasca_common.kafka.transport.producer_clients import OpenTransport, ProducerClients

LOG = SafeLogger(__name__)

_GRACE_SECONDS = 0.25
_LONGEST_SECONDS = 1e8  # three years; locks do not accept infinity
# Two retries of one report, even by two producers, must not both send the same message.
_RETRYING = threading.RLock()
os.register_at_fork(before=_RETRYING.acquire, after_in_parent=_RETRYING.release, after_in_child=_RETRYING.release)

_open_producers: weakref.WeakSet[KafkaProducer] = weakref.WeakSet()
_EXIT_SECONDS = 2.0  # for all producers together

Options = ParamSpec("Options")
Result = TypeVar("Result")
Method = Callable[Concatenate["KafkaProducer", Options], Result]


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerHealth:
    """The state of a producer. ``oldest_unacknowledged_seconds`` is the first sign that Kafka does not respond, because
    the client logs no error for a minute.

    ``recreated_topics``: the number of times that a deleted and recreated topic was detected. ``oldest_call_seconds``:
    the age of the oldest client call that has not returned, or 0 if there is none. ``poisoned``: whether a call did not
    return by its deadline. ``finished``: whether the client had a fatal error or is poisoned, so that nothing is sent
    until `KafkaProducer.reopen`. ``driver``: ``native``, ``confluent`` or ``memory``."""

    outstanding_messages: int
    outstanding_bytes: int
    oldest_unacknowledged_seconds: float
    last_error: TransportError | None
    failed_listeners: int
    recreated_topics: int = 0
    oldest_call_seconds: float = 0.0
    poisoned: bool = False
    finished: bool = False
    driver: str = ""


def _waits(method: Method[Options, Result]) -> Method[Options, Result]:
    """Decorate a method that waits for outcomes. Refuse it inside another call of the same producer on this thread (in
    a delivery callback, or in a signal handler that interrupted the call), because it would deadlock."""

    @functools.wraps(method)
    def call(self: KafkaProducer, /, *arguments: Options.args, **options: Options.kwargs) -> Result:
        thread, callers = threading.get_ident(), self._table.callers
        if thread in callers:
            raise InCallbackError(
                f"{method.__name__.strip('_')} waits, and cannot be called in a delivery callback, or in a signal "
                "handler that interrupts a call of the same producer: use send, or set a flag"
            )
        callers[thread] = None
        try:
            return method(self, *arguments, **options)
        finally:
            del callers[thread]  # no call since the method returned, so no signal handler can interrupt this

    return call


class KafkaProducer:
    """A thread-safe producer for a whole process, and a context manager. Outcomes are never raised as exceptions:
    sending raises only `MisuseError`, and `send` also raises `QueueFull` if the budget has no room."""

    def __init__(self, settings: ProducerSettings, open_transport: OpenTransport) -> None:
        """``open_transport(batch_bytes, on_error)`` opens a client whose batches have at most ``batch_bytes``."""
        self.settings = settings
        self._id_prefix = new_id_prefix()
        self._closed = False
        self._closing = threading.RLock()
        self._reopening = threading.RLock()  # close does not wait for it
        self._final: DeliveryReport | None = None
        self._transactions_ready = False
        self.open_transaction: Callable[[], Transaction | None] = lambda: None
        self._table = Table(max_messages=settings.budget_messages, max_bytes=settings.budget_bytes)
        ready: dict[str, TopicLimit] = {}
        self._guard = ForkGuard("KafkaProducer", in_child=ready.clear)
        self._clients = ProducerClients(settings, open_transport, self._guard, self._table.lock, self._on_error)
        self._limits = TopicLimits(settings, self._table, self._clients, ready, self._produce)
        self._clock = self._table.clock = self._clients.main.clock
        self._serving = Serving(self._table, self._clients, self._limits.request)
        _open_producers.add(self)

    @_waits
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

        ``key`` applies to records without a key; ``headers`` are put before those of each record.
        ``timeout`` is in seconds, by default ``[kafka] publish_timeout_seconds``. A message without an outcome by then
        is *unknown* and still in flight: pass the report to `retry`, and never the records to `publish` again.
        """
        own = as_list(records)
        if topic not in self._limits.ready or self._closed:
            self._check("publish")
        deadline = self._deadline(timeout)
        bulk = self._bulk(topic, own, key, headers)
        try:
            self._deliver(bulk, deadline)
            self._serving.wait(bulk.all_over(), deadline)
            return DeliveryReport(self._table.attempts_of(bulk), bulk=bulk)
        except BaseException:
            self._table.interrupt((bulk,))
            raise

    @_waits
    def retry(self, report: UndeliveredReport, *, timeout: float | None = None) -> DeliveryReport:
        """Deliver the same messages with the same ids: wait for messages in flight, resend failed or abandoned
        messages, and keep the outcomes of messages that were delivered or can never be delivered. A retry of any
        earlier report is safe.
        """
        self._check("retry")
        deadline = self._deadline(timeout)
        bulks: list[Bulk] = []
        try:
            old = self._next_attempts(report, bulks)
            for bulk in bulks:
                self._deliver(bulk, deadline)
            latest = old.latest()
            self._serving.wait(all_over(latest.values()), deadline)
            return old.with_attempts(latest)
        except BaseException:
            self._table.interrupt(bulks)
            raise

    def send(
        self,
        topic: str,
        record: bytes | Record,
        *,
        key: bytes | None = None,
        on_delivery: DeliveryListener | None = None,
    ) -> bytes | None:
        """Send one message without waiting for its outcome. Return its id (``None`` if ids are off).

        ``on_delivery`` receives the `Delivery`, on a thread of the library; outside a transaction, `flush` and `close`
        report only messages without it. The call waits only for room in the budget, and never inside a delivery
        callback; it raises `QueueFull` if there is no room.
        """
        limit = self._limits.ready.get(topic)
        if (
            limit is None
            or on_delivery is not None
            or type(record) is not bytes
            or (key is not None and type(key) is not bytes)
        ):
            given_id = self._send(topic, record, key, on_delivery)
        else:
            given_id = limit.transport.send(topic, record, key, limit.sends) if limit.is_atomic else None
            if given_id is None:  # the reservation has too little room, or the message needs further checks
                given_id = self._send(topic, record, key, None, limit)
        if self._serving.idle:
            self._serving.wake()
        return given_id or None

    @_waits
    def flush(self, timeout: float | None = None) -> DeliveryReport:
        """Wait up to ``timeout`` seconds for the sends that no flush has reported yet. The report lists undelivered
        messages and counts delivered ones. Outside a transaction, it does not list messages with ``on_delivery``.
        """
        self._check("flush")
        sends, transaction = self._table.unfinished(of_sends=True), self.open_transaction()
        earlier = () if transaction is None else [attempt.latest for attempt in transaction.reported]
        self._serving.wait(all_over([*sends, *earlier]), self._deadline(timeout))
        return self._flushed(sends)

    @_waits
    def close(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for messages in flight, abandon the remaining ones after ``timeout`` seconds, and close the client.

        This takes at most ``timeout`` + 1 s. Return a report like `flush`, in which abandoned messages are *unknown*.
        Another close waits for the first one, even longer than its own time-out, and returns the same report.
        """
        self._guard.check()
        deadline = self._deadline(timeout)
        with self._closing:  # a concurrent close waits for the first close's report
            if self._final is None:
                self._closed = True
                self._table.shut()
                self._serving.wait(all_over(self._table.unfinished()), deadline)
                self._give_up_all(DeliveryAbandoned("the producer was closed before the broker responded"))
                self._final = self._flushed(())
                try:
                    self._serving.stop(max(deadline - self._clock.monotonic(), _GRACE_SECONDS))
                finally:
                    self._clients.release()
            return self._final

    @_waits
    def reopen(self) -> None:
        """Continue with another client after a fatal error (`ProducerHealth.finished`), with the same ids and budget.

        Messages in flight become *unknown*; reports can then be retried again. With a transactional id, the new client
        first takes over this id; leave the block of a transaction before you reopen. Raises `TransportError` or
        `ConfigurationError` if no client can be opened, which changes nothing, and `ClosedError` after a close.
        """
        self._check_can_reopen()
        with self._reopening:
            main = self._clients.open()
            try:
                if self.settings.transactional_id is not None:
                    main.init_transactions(self.settings.transaction_timeout_seconds)
            except BaseException:
                self._clients.release((main,))
                raise
            LOG.warning("the producer continues with another client; the last error: %s", self._table.last_error)
            with self._closing:
                if self._closed or self.open_transaction() is not None:
                    self._clients.release((main,))
                else:
                    try:
                        self._give_up_all(DeliveryAbandoned("the producer was reopened before the broker responded"))
                    finally:  # also after an interrupt, so that later messages wait for the new client
                        self._replace_clients(main)
            self._check_can_reopen()

    def _replace_clients(self, main: BoundedProducer) -> None:
        hangs = self._clients.oldest_call_seconds > 0  # perhaps in a call of the serving thread
        if hangs:
            self._serving.retire()
        with self._table.lock:
            before = self._clients.use(main)
            self._table.start_again()
        self._limits.resume()
        self._transactions_ready = self.settings.transactional_id is not None
        if hangs:
            self._serving.start()
        self._clients.release(before)

    def transaction(self) -> Transaction:
        """Return a context manager; messages sent and offsets committed in it become visible together or not at all.
        Needs ``[kafka] transactional_id``. Its block raises `MisuseError` while another transaction is open."""
        self._check("transaction")
        if not self._transactions_ready:
            self.init_transactions()
        return Transaction(self, self._clients, self._table.lock, self._limits.refuse_waiting, self._settle_all)

    @_waits
    def init_transactions(self, timeout: float | None = None) -> None:
        """Fence an earlier producer with this ``transactional_id``, and end the transaction that it left open.

        `transaction` calls it if necessary. Call it before a consumer starts at offsets that the earlier producer
        committed. ``timeout`` is in seconds, by default ``transaction_timeout_seconds``. Raises `RetriableError` if
        there is no response by then; call it again to continue.
        """
        self._check("init_transactions")
        if self.settings.transactional_id is None:
            raise ConfigurationError("a transaction needs [kafka] transactional_id, unique to each running process")
        seconds = self.settings.transaction_timeout_seconds if timeout is None else timeout
        self._clients.main.init_transactions(seconds)
        self._transactions_ready = True

    def health(self) -> ProducerHealth:
        table, clients = self._table, self._clients
        messages, size, age_seconds = table.in_flight()
        return ProducerHealth(
            outstanding_messages=messages,
            outstanding_bytes=size,
            oldest_unacknowledged_seconds=age_seconds,
            last_error=table.last_error,
            failed_listeners=self._serving.failed_listeners,
            recreated_topics=self._limits.recreated_topics,
            oldest_call_seconds=clients.oldest_call_seconds,
            poisoned=clients.poisoned,
            finished=table.finished is not None,
            driver=clients.main.driver,
        )

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close_and_log(None)

    def _close_and_log(self, timeout: float | None) -> None:
        was_reported = self._final is not None
        report = self.close(timeout)
        if not (report.ok or was_reported):  # no caller receives this report
            left, unknown = len(report.failed) + len(report.unknown), len(report.unknown)
            LOG.error("a producer was closed with %d undelivered messages (%d of them unknown)", left, unknown)

    # Check, reserve and hand over

    def _bulk(
        self, topic: str, records: Sequence[Any], key: bytes | None, headers: Headers = (), *, plain: bool = True
    ) -> Bulk:
        """Return the bulk of a call. ``plain``: avoid `DeliveryAttempt` objects if possible. Raises `WrongType`."""
        bulk = Bulk(self._table, topic, self._id_prefix_of(topic), key=key)
        check("topic", topic)
        check("key", key)
        columns = plain_bulk(records, key) if plain and not headers else None
        if columns is not None:
            bulk.values, bulk.ids, bulk.size, bulk.largest = columns
            bulk.next = len(records)
            return bulk
        for record in records:
            full, own_id, size = checked(record, key, headers, verbatim=self.settings.verbatim)
            bulk.add(DeliveryAttempt(bulk, full, own_id, size))
        return bulk

    def _next_attempts(self, report: UndeliveredReport, bulks: list[Bulk]) -> DeliveryReport:
        """Add the next attempts of the messages that can be retried to ``bulks``; return the report."""
        if not isinstance(report, DeliveryReport):
            raise WrongType(f"report: a report is a DeliveryReport, not {type(report).__name__}")
        by_topic: dict[str, list[DeliveryAttempt]] = {}
        with _RETRYING:
            for old in dict.fromkeys(report.latest().values()):  # an id may occur twice in a bulk
                if old.is_worth_sending:
                    by_topic.setdefault(old.bulk.topic, []).append(old)
            for topic, attempts in by_topic.items():
                for some in split(attempts, attrgetter("size"), self.settings):
                    bulks.append(Bulk(self._table, topic, None))
                    for old in some:
                        again = next_attempt(old, bulks[-1])
                        bulks[-1].add(again)
                        old.successor = again
        return report

    def _id_prefix_of(self, topic: str) -> bytes | None:
        without_ids = self.settings.verbatim or topic in self.settings.topics_without_message_id
        return None if without_ids else self._id_prefix

    def _deliver(self, bulk: Bulk, deadline: float) -> DeliveryError | None:
        """Hand over a bulk once the budget has room for it. At the deadline, settle it and return the error."""
        table = self._table
        while not table.reserve(bulk):
            is_over = self._serving.wait(lambda: table.has_room(bulk) or not table.can_have_room(bulk), deadline)
            if not (is_over and table.can_have_room(bulk)):
                return table.refuse(bulk)
        limit = self._limits.ready.get(bulk.topic) or self._limits.wait_for(bulk)
        if limit is not None:
            self._produce(limit, bulk)
        return None

    def _produce(self, limit: TopicLimit, bulk: Bulk) -> None:
        accepted, ids = 0, bulk.ids or bulk.id_prefix
        if bulk.values and bulk.largest <= limit.max_bytes and not bulk.over:
            with contextlib.suppress(*limit.transport.refusals):
                accepted = limit.transport.produce(bulk.topic, bulk.values, bulk.key, bulk.first, ids)
        if bulk.over or accepted == bulk.next - bulk.first:
            return
        with self._table.lock:
            attempts = [bulk.attempt(sequence) for sequence in range(bulk.first + accepted, bulk.next)]
        for attempt in attempts:
            self._produce_one(limit, attempt)

    def _produce_one(self, limit: TopicLimit, attempt: DeliveryAttempt) -> None:
        record, topic, own_id = attempt.record, attempt.bulk.topic, attempt.message_id
        if attempt.over or attempt.successor is not None or record is None:
            return  # abandoned while it waited, or in flight in another attempt
        if attempt.size > limit.max_bytes:
            error = limit.refusal or MessageTooLarge(topic, attempt.size, limit.max_bytes)
            self._table.give_up((attempt,), Outcome.FAILED, error)
            self._limits.forget_if_old(topic, limit)
            return
        headers = record.headers if own_id is None else (*record.headers, (MESSAGE_ID_HEADER, own_id))
        partition = ANY_PARTITION if record.partition is None else record.partition
        try:
            limit.transport.produce_record(
                topic, record.value, record.key, partition, record.timestamp_ms or 0, headers, attempt.sequence
            )
        except limit.transport.refusals as error:
            cause = limit.transport.fault(error)
            if limit.transport in self._clients.in_use():
                self._table.on_undelivered(cause)
            self._table.give_up((attempt,), Outcome.FAILED, DeliveryRefused(cause, permanent=False))

    def _send(
        self,
        topic: str,
        record: bytes | Record,
        key: bytes | None,
        on_delivery: DeliveryListener | None,
        limit: TopicLimit | None = None,
    ) -> bytes | None:
        """Implement `send`, except for bare bytes with a reservation. ``limit``: the topic's limit, with
        which room for plain bytes is reserved, or ``None`` to reserve none."""
        thread, callers = threading.get_ident(), self._table.callers
        is_inside = thread in callers  # then this call must not wait
        callers[thread] = None
        try:
            given_id = None
            if limit is not None and type(record) is bytes:
                given_id = limit.transport.send(topic, record, key, limit.sends)
                if given_id is None and self._open_sends(topic, limit, len(record) + len(key or b"")):
                    given_id = limit.transport.send(topic, record, key, limit.sends)
            if given_id is None:
                patience = 0.0 if is_inside else self.settings.publish_timeout_seconds
                given_id = self._send_alone(topic, record, key, on_delivery, patience)
            return given_id
        finally:
            if not is_inside:
                del callers[thread]

    def _open_sends(self, topic: str, limit: TopicLimit, size: int) -> bool:
        """Reserve sequences and room for plain sends to the topic; the first has ``size`` bytes."""
        with self._table.lock:
            is_ready = self._limits.ready.get(topic) is limit
            if is_ready:
                prefix = self._id_prefix_of(topic)
                limit.sends = self._table.open_sends(topic, prefix, size, limit.transport, limit.max_bytes)
            return is_ready

    def _send_alone(
        self,
        topic: str,
        record: bytes | Record,
        key: bytes | None,
        on_delivery: DeliveryListener | None,
        patience: float,
    ) -> bytes | None:
        """Implement `send` as a bulk of one message; wait ``patience`` seconds for room."""
        self._check("send")
        bulk = self._bulk(topic, [record], key, plain=False)
        attempt = bulk.attempts[0]
        attempt.for_flush = on_delivery is None or self.open_transaction() is not None
        attempt.listeners = [] if on_delivery is None else [on_delivery]
        try:
            refused = self._deliver(bulk, self._clock.monotonic() + patience)
        except BaseException:
            self._table.interrupt((bulk,))
            raise
        if refused is not None:
            self._check("send")
            raise refused
        return attempt.message_id

    # Settle

    def _on_error(self, error: TransportError) -> None:
        """Handle a client-wide error, within the client's poll or on the thread of a request. The table is locked."""
        self._table.note_trouble(error)
        if error.fatal:
            self._table.finished = error
            self._clients.purge()
            if self._clients.poisoned:
                bulks, why = self._table.unfinished(), DeliveryRefused(error, permanent=False)
                self._table.give_up_bulks(bulks, Outcome.UNKNOWN, why)

    def _flushed(self, sends: Iterable[Bulk]) -> DeliveryReport:
        delivered, attempts = 0, list[DeliveryAttempt]()
        try:
            with self._table.lock:
                delivered, attempts = self._table.take_report(sends)
                if (transaction := self.open_transaction()) is not None:
                    transaction.reported += attempts
                self._table.reported(attempts)
            return DeliveryReport(dict(enumerate(attempts)), delivered_before=delivered)
        except BaseException:
            self._table.report_later(delivered, attempts)
            raise

    def _give_up_all(self, error: DeliveryAbandoned) -> None:
        """Settle all messages, without waiting for brokers. The client returns the bytes of purged messages."""
        self._limits.pause()
        self._settle_all(error)

    def _settle_all(self, error: DeliveryAbandoned) -> None:
        bulks = self._table.unfinished()
        try:
            if bulks:
                self._clients.purge()
                self._serving.wait(all_over(bulks), self._clock.monotonic() + _GRACE_SECONDS)
        finally:
            self._table.give_up_bulks(bulks, Outcome.UNKNOWN, error)

    # Wait and check

    def _deadline(self, timeout: float | None) -> float:
        seconds = self.settings.publish_timeout_seconds if timeout is None else timeout
        if not isinstance(seconds, int | float) or math.isnan(seconds):
            raise WrongType(f"timeout: a time-out is a number of seconds, or None, not {timeout!r}")
        return self._clock.monotonic() + min(seconds, _LONGEST_SECONDS)

    def _check(self, call: str) -> None:
        self._guard.check()
        if self._closed:
            raise ClosedError(f"{call} on a producer that was closed")

    def _check_can_reopen(self) -> None:
        self._check("reopen")
        if self.open_transaction() is not None:
            raise MisuseError("reopen while a transaction is open: leave its block first")


@atexit.register
def _close_open_producers() -> None:
    """Close producers that are still open when the interpreter exits, to deliver their messages in flight if possible.

    It does not replace `close`: undelivered messages are only logged, and no program can react to a log line.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    for producer in list(_open_producers):
        if not (producer._closed or producer._guard.forked):
            try:
                producer._close_and_log(max(0.0, deadline - time.monotonic()))
            except Exception:
                LOG.exception("a producer that was left open could not be closed at exit")
            warnings.warn("a KafkaProducer was not closed before the exit", ResourceWarning, stacklevel=1)
