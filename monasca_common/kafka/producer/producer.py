# SPDX-License-Identifier: Apache-2.0
"""`KafkaProducer`: hands messages to Kafka and reports the outcome of each.

Every way in takes the same steps: a message is *made* (`Outgoing`), *reserved* (room in the budget, an entry in the
book), *handed over* to the client of its topic (`TopicLimits`), and *settled* by its answer, or when it is given up
(`Ledger`). A caller waits in `publish` and `retry` (`Poller`), or calls `send`, and then `flush` or `close`.

`send` takes no lock: it enters its message and then looks whether the client is still ``ready``. `close`, `reopen` and
a fatal error detach it and then look at the book. So whatever happens at the same moment, one sees the other.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from monasca_common.kafka.errors import (
    ClosedError,
    ConfigurationError,
    DeliveryRefused,
    FatalError,
    MisuseError,
    TransportError,
    UndeliveredReport,
    WrongType,
)
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers, Record
from monasca_common.kafka.old_arguments import RefusesOldArguments
from monasca_common.kafka.producer import forgotten
from monasca_common.kafka.producer.client import Client
from monasca_common.kafka.producer.delivery_counts import DeliveryCounter
from monasca_common.kafka.producer.health import ProducerHealth
from monasca_common.kafka.producer.in_flight import Bulk, Pending, PlainBulk
from monasca_common.kafka.producer.ledger import Ledger, Unreported
from monasca_common.kafka.producer.listeners import Listener
from monasca_common.kafka.producer.outcome import DeliveryListener, Outcome
from monasca_common.kafka.producer.outgoing import (
    PLAIN_OVERHEAD_BYTES,
    Entrance,
    MessageIds,
    Outgoing,
    as_list,
    latest,
)
from monasca_common.kafka.producer.poller import Poller
from monasca_common.kafka.producer.report import DeliveryReport, checked_report
from monasca_common.kafka.producer.retirement import Retirement
from monasca_common.kafka.producer.topic_limits import OpenTransport
from monasca_common.kafka.producer.transaction import Transaction
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ANY_PARTITION, ProducerTransport

LOG = logging.getLogger(__name__)

_POLL_EVERY = 0x1FF  # a sender collects acknowledgements once in 512 messages
_HUNG_SECONDS = 30.0  # no thread serves for so long whose calls of the client come back
_LONGEST_SECONDS = 1e8  # three years; infinity is too much for locks
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
        self._ids = MessageIds()
        self._closed = False
        self._closing = threading.RLock()
        self._reopening = threading.RLock()  # a close does not wait for it
        self._final: DeliveryReport | None = None
        self._transactions_ready = False
        self._client = Client(settings, open_transport, self._on_error)
        self._guard = self._client.guard
        self._clock = self._client.limits.main.clock
        self._ledger = Ledger(
            self._clock,
            self._fault,
            budget_messages=settings.budget_messages,
            budget_bytes=settings.budget_bytes,
        )
        self._budget = self._ledger.budget
        self._outgoing = Outgoing(settings, self._ledger, self._ids)
        self._poller = Poller(self._ledger, self._clock, self._client.transports, settings.eager_callers)
        self._entrance = Entrance(settings, self._ledger, self._outgoing, self._client, self._poller, self._clock)
        self._retirement = Retirement(self._ledger, self._client, self._poller, self._clock)
        self._client.use(self._client.limits, self._poller.wake, self._ledger.know)
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
        self._check("publish")
        self._ledger.tick()
        deadline = self._deadline(timeout)
        bulk: Bulk | PlainBulk | None = None
        try:
            with self._poller.preparing():
                bulk = self._entrance.make(topic, as_list(records), key, headers)
                attached = self._entrance.attach(bulk)
                entered = self._ledger.enter(bulk)
                if entered:
                    self._entrance.hand_over(bulk)
            if not entered:
                self._entrance.hand_over_when_there_is_room(bulk, deadline)
            self._poller.wait(bulk.latch, deadline - self._clock.monotonic())
            return self._report(bulk, attached)
        except BaseException:  # Ctrl-C: there is no report, so flush and close must report it
            if bulk is not None:
                self._ledger.leave(bulk)
            raise

    def retry(self, report: UndeliveredReport, *, timeout: float | None = None) -> DeliveryReport:
        """The same messages under the same ids: waits for those still on their way, sends again what failed or was
        given up, and keeps what was delivered or can never be accepted. Safe to call again with any earlier report.
        """
        self._check("retry")
        earlier = checked_report(report)
        deadline = self._deadline(timeout)
        bulk: Bulk | None = None
        try:
            with _RETRYING:
                bulk = self._entrance.next_attempts([latest(pending) for pending in earlier._pendings])
            self._entrance.hand_over_when_there_is_room(bulk, deadline)
            pendings = [latest(pending) for pending in earlier._pendings]
            for ledger in {pending.ledger: None for pending in pendings}:
                its_own = [pending for pending in pendings if pending.ledger is ledger]
                latch = ledger.watch(dict.fromkeys(its_own))
                try:
                    self._poller.wait(latch, deadline - self._clock.monotonic())
                finally:
                    if not latch.open:
                        ledger.unwatch(latch, its_own)
            return DeliveryReport(pendings, delivered_before=earlier._delivered_before)
        except BaseException:
            if bulk is not None:
                self._ledger.leave(bulk)
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
        # The plain case, written out: each call and each slot here shows in the benchmark.
        client = self._client
        ready = client.ready
        limit = ready.get(topic)
        if limit is None or type(record) is not bytes or on_delivery is not None:
            return self._send(topic, record, key, on_delivery)
        ids = self._ids
        number = next(ids.numbers)
        value_bytes = len(record)
        size = value_bytes + PLAIN_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes:
                return self._send(topic, record, key, on_delivery)
            size += len(key)
        ledger = self._ledger
        budget = self._budget
        if (
            size > limit.max_bytes
            or len(ledger.outstanding) >= budget.room_messages
            or budget.entered_bytes - budget.left_bytes + size > budget.max_bytes
        ):
            return self._send(topic, record, key, on_delivery)
        try:
            pending = ledger.spare.pop()
        except IndexError:
            pending = Pending()
            pending.ledger = ledger
            pending.watchers = pending.outcome = pending.successor = None
        pending.message_id = message_id = ids.pack(ids.prefix, number) if limit.with_ids else None
        pending.topic = topic
        pending.record = record
        pending.key = key
        pending.size = size
        pending.value_bytes = value_bytes
        pending.queued_at = ledger.now
        try:
            ledger.outstanding[pending] = None
            budget.entered_bytes += size
            if client.ready is not ready:
                self._hand_over_late(pending)
                return message_id
            if self._poller.idle:
                ledger.tick()
                pending.queued_at = ledger.now
                self._poller.wake()
            pending.stamp = stamp = limit.stamp  # now that it is in the book: `DeliveryCounter._begin_bucket`
            time_ms = stamp.bucket.now_ms
            if key is not None:
                stamp.uniform = False
            try:
                if message_id is not None:
                    headers = [(MESSAGE_ID_HEADER, message_id)]
                    limit.produce(topic, record, key, ANY_PARTITION, pending, pending, time_ms, headers)
                else:
                    limit.produce(topic, record, key, ANY_PARTITION, pending, pending, time_ms)
            except Exception as error:
                client.limits.refused(pending, error)
            if not number & _POLL_EVERY:
                self._poller.poll_in_passing()
        except BaseException as interruption:
            if not isinstance(interruption, Exception):  # Ctrl-C: whether the client has it, nobody knows
                self._ledger.leave(Bulk([pending], reserved=()))
            raise
        return message_id

    def _send(
        self, topic: str, record: bytes | Record, key: bytes | None, on_delivery: DeliveryListener | None
    ) -> bytes | None:
        """`send` for everything but bare bytes to a known topic with room in the budget."""
        self._guard.check()
        self._check_open("send")
        self._ledger.tick()
        pending, own = self._outgoing.one(topic, record, key)
        if own or on_delivery is not None:  # an own id can be attached to
            listeners = () if on_delivery is None else (Listener(on_delivery),)
            pending.watchers = (*listeners, self._ledger)
        watchers = pending.watchers or ()
        bulk = Bulk([pending])
        try:
            if not own or not self._ledger.attach((pending,)):
                patience = 0.0 if self._poller.in_listener() else self.settings.publish_timeout_seconds
                if not self._entrance.enter(bulk, self._clock.monotonic() + patience):
                    full = self._ledger.larger_than_budget(pending) or self._entrance.no_room(bulk)
                    self._ledger.withdraw((pending,), full, own=watchers)
                    self._check_open("send")
                    raise full
                self._entrance.hand_over(bulk)
        except BaseException as interruption:
            if not isinstance(interruption, Exception):
                self._ledger.leave(bulk)
            raise
        if self._poller.idle:
            self._poller.wake()
        return pending.message_id

    def flush(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for the sends that no flush has reported yet, ``timeout`` seconds at most.

        The report has those that are not delivered, and counts those that are.
        """
        self._check("flush")
        deadline = self._deadline(timeout)
        unreported = Unreported()
        try:
            self._ledger.take_over_serving(_HUNG_SECONDS)
            self._ledger.collect(unreported)
            if not self._poller.wait(unreported.latch, deadline - self._clock.monotonic()):
                self._ledger.unwatch(unreported.latch, unreported.pendings)
            return DeliveryReport(unreported.pendings, delivered_before=unreported.delivered)
        except BaseException:  # Ctrl-C: there is no report, so the next flush or the close must report it
            self._ledger.give_back(unreported)
            raise

    def close(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for what is on its way, give up what remains after ``timeout`` seconds, release the client.

        Takes at most ``timeout`` + 1 s. The report is `flush`'s, with what was given up as *unknown*. Closing again
        returns the same report.
        """
        self._guard.check()
        self._poller.refuse_inside_listener("close")
        deadline = self._deadline(timeout)
        with self._closing:  # another thread that closes waits for the first one's report
            if self._final is None:
                self._closed = True
                self._retirement.settle_all(deadline)
                if self._final is None:  # else a signal handler closed it meanwhile
                    self._final = self._retirement.last_report()
                    self._retirement.end(deadline)
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
        self._poller.refuse_inside_listener("reopen")
        with self._reopening:
            self._check_open("reopen")
            limits = self._client.open_another()
            try:
                if self.settings.transactional_id is not None:
                    limits.main.init_transactions(self.settings.transaction_timeout_seconds)
            except BaseException:
                self._retirement.release(limits)
                raise
            LOG.warning("the producer goes on with another client; the last error: %s", self._ledger.last_error)
            with self._closing:
                if self._closed:
                    self._retirement.release(limits)
                else:
                    self._transactions_ready = self.settings.transactional_id is not None
                    self._retirement.replace(limits)
                if self._closed:  # by a signal handler, perhaps, which found the client that is replaced
                    self._retirement.release(self._client.limits)
            self._check_open("reopen")

    def count_deliveries(self, bucket_seconds: int) -> DeliveryCounter:
        """Count delivered messages from now on, by topic and bucket of their timestamps, for an audit. Call it once,
        before anything is sent. A message of a transaction counts once that is committed; one that is sent again by
        `retry` once, when it is delivered. Raises `MisuseError` for a second call, and where it comes too late."""
        if self._ledger.counter is not None or self._client.ready or self._ledger.busy:
            raise MisuseError("count_deliveries: call it once, before anything is sent")
        return self._ledger.count_deliveries(bucket_seconds)

    def transaction(self) -> Transaction:
        """A context manager: what is sent in it, and the offsets committed in it, become visible together or not at
        all. Needs ``[kafka] transactional_id``; one at a time."""
        self._check("transaction")
        if not self._transactions_ready:
            self.init_transactions()
        return Transaction(self, self._client.limits.main, self._ledger.counter)

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
        ledger = self._ledger
        return ProducerHealth(
            outstanding_messages=ledger.outstanding_messages,
            outstanding_bytes=self._budget.used_bytes,
            oldest_unacknowledged_seconds=ledger.oldest_age(),
            last_error=ledger.last_error,
            failed_listeners=ledger.listeners.failures,
            recreated_topics=self._client.limits.recreated_topics,
            oldest_call_seconds=self._client.oldest_call_seconds(),
            poisoned=self._client.poisoned,
            finished=ledger.finished is not None,
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
        return self._ledger.busy

    def close_at_exit(self) -> Mapping[str, int]:
        report = self.close(0)
        return Counter(delivery.topic for delivery in (*report.failed, *report.unknown))

    def _hand_over_late(self, pending: Pending) -> None:
        """Hand over a message that a plain send entered while the client was closed, finished or replaced."""
        if not self._closed:
            self._client.limits.launch(pending.topic, iter((pending,)))
        elif self._ledger.take_out(pending):
            self._check_open("send")  # otherwise the close found it in the book, and reports it

    # Settled

    def _report(self, bulk: Bulk | PlainBulk, attached: Mapping[Pending, Pending]) -> DeliveryReport:
        if isinstance(bulk, PlainBulk):
            if bulk.is_delivered:
                return DeliveryReport(bulk)
            self._ledger.take_over_serving(_HUNG_SECONDS)
            pendings = self._ledger.break_up(bulk)
        else:
            pendings = [attached.get(pending, pending) for pending in bulk.pendings] if attached else bulk.pendings
        if not bulk.latch.open:
            self._ledger.unwatch(bulk.latch, pendings)
        return DeliveryReport(pendings)

    # Waiting and checking

    def _deadline(self, timeout: float | None) -> float:
        seconds = self.settings.publish_timeout_seconds if timeout is None else timeout
        if not isinstance(seconds, int | float) or math.isnan(seconds):
            raise WrongType(f"timeout: a time-out is a number of seconds, or None, not {timeout!r}")
        return self._clock.monotonic() + min(seconds, _LONGEST_SECONDS)

    def _check(self, call: str) -> None:
        self._guard.check()
        self._poller.refuse_inside_listener(call)
        self._check_open(call)

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(f"{call} on a producer that was closed")

    # The client, and what it says

    def _on_error(self, error: TransportError) -> None:
        """Note a client-wide error. The client's poll calls it, or a thread with a request."""
        ledger = self._ledger
        ledger.note_trouble(error)
        if error.fatal:
            ledger.finished = error
            self._client.detach()  # as at a close
            if self._client.poisoned:
                self._client.limits.ready.clear()  # they lead around `BoundedProducer`
            ledger.settle_all(Outcome.UNKNOWN, DeliveryRefused(error, permanent=False))

    def _fault(self, error: Any) -> TransportError:
        fault = self._client.limits.main.fault(error)
        if isinstance(fault, FatalError):
            self._ledger.last_error = fault  # of one message, but no message fares better
        if fault.name == "MSG_SIZE_TOO_LARGE":
            self._client.limits.forget()  # some topic's limit was lowered since it was asked for
        return fault
