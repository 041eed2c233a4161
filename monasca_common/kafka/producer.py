# SPDX-License-Identifier: Apache-2.0
"""`KafkaProducer`: hands messages to Kafka and tells what became of each."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from monasca_common.kafka.delivery import DeliveryListener, DeliveryReport, Outcome
from monasca_common.kafka.errors import (
    AuthorizationError,
    ClosedError,
    ConfigurationError,
    DeliveryAbandoned,
    DeliveryRefused,
    FatalError,
    TransportError,
)
from monasca_common.kafka.fork_guard import ForkGuard
from monasca_common.kafka.identity import MessageIds
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers, Record
from monasca_common.kafka.producing.admission import Admission
from monasca_common.kafka.producing.bulk import Bulk
from monasca_common.kafka.producing.drafts import PLAIN_OVERHEAD_BYTES, Drafts, as_list, latest
from monasca_common.kafka.producing.ledger import Ledger
from monasca_common.kafka.producing.pending import Pending
from monasca_common.kafka.producing.pump import Pump
from monasca_common.kafka.producing.routes import OpenTransport, Routes
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transaction import Transaction
from monasca_common.kafka.transport.base import ANY_PARTITION

LOG = logging.getLogger(__name__)

_HELP_EVERY = 0x1FF  # a sender collects acknowledgements once in 512 messages
_CLOSE_GRACE_SECONDS = 0.5
# Two retries of one report, even by two producers, must not both find the same message worth sending.
_RETRYING = threading.Lock()
os.register_at_fork(before=_RETRYING.acquire, after_in_parent=_RETRYING.release, after_in_child=_RETRYING.release)


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerHealth:
    """``oldest_unacknowledged_seconds`` tells first that Kafka does not answer: the client is silent for a minute."""

    outstanding_messages: int
    outstanding_bytes: int
    oldest_unacknowledged_seconds: float
    last_error: TransportError | None
    failed_listeners: int


class KafkaProducer:
    """Thread-safe; one instance serves a whole process. A context manager that closes itself.

    An outcome never raises: only misuse does (`MisuseError`), and `send` when there is no room (`QueueFull`).
    """

    def __init__(self, settings: ProducerSettings, open_transport: OpenTransport) -> None:
        """``open_transport(batch_bytes, on_error)`` opens a client whose batches hold at most ``batch_bytes``."""
        self.settings = settings
        self._guard = ForkGuard("KafkaProducer", in_child=_forget_routes(weakref.ref(self)))
        self._ids = MessageIds()
        self._closed = False
        self._closing = threading.RLock()
        self._final: DeliveryReport | None = None
        self._transactions_ready = False
        self.abort_is_due = False  # of a transaction whose abort has no answer yet
        self._routes = Routes(settings, self._opening(open_transport), self._on_error)
        self._ready = self._routes.ready  # topic -> Route; emptied by close and in a child, so `send` need not check
        transport = self._routes.main
        self._clock = transport.clock
        self._ledger = Ledger(
            transport.clock,
            self._fault,
            budget_messages=settings.budget_messages,
            budget_bytes=settings.budget_bytes,
        )
        self._drafts = Drafts(settings, self._ledger, self._ids)
        self._pump = Pump(self._ledger, transport.clock, self._routes.transports, settings.eager_callers)
        self._admission = Admission(settings, self._ledger, self._pump, self._routes, transport.clock)
        self._routes.on_launch = self._pump.wake

    def _opening(self, open_transport: OpenTransport) -> OpenTransport:
        def opened(batch_bytes: int, on_error: Any) -> Any:
            transport = open_transport(batch_bytes, on_error)
            self._guard.pin(transport)
            return transport

        return opened

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
        records = as_list(records)
        bulk = None if headers else self._launch_plain(topic, records, key)
        if bulk is not None:
            return self._outcome(bulk, deadline)
        with self._pump.entering():
            latch, pendings, own = self._drafts.bulk(topic, records, key, headers)
            attached = self._ledger.attach(own) if own else {}
            fresh = [pending for pending in pendings if pending not in attached] if attached else pendings
            size = sum([pending.size for pending in fresh])
            try:
                entered = self._ledger.enter(fresh, size)
                if entered:
                    self._routes.launch(topic, fresh)
            except BaseException:  # Ctrl-C: there will be no report, so that flush and close must tell
                self._ledger.disown(latch, fresh)
                raise
        try:
            if not entered:
                self._admission.launch(fresh, size, deadline)
            self._pump.wait(latch, deadline - self._clock.monotonic())
        except BaseException:
            self._ledger.disown(latch, fresh)
            raise
        if attached:
            return DeliveryReport([attached.get(pending, pending) for pending in pendings])
        return DeliveryReport(pendings, all_delivered=latch.open and not latch.spoiled)

    def retry(self, report: DeliveryReport, *, timeout: float | None = None) -> DeliveryReport:
        """The same messages under the same ids: waits for those still on their way, sends again what failed or was
        given up, and keeps what was delivered or can never be accepted. Safe to call again with any earlier report.
        """
        self._check("retry")
        deadline = self._deadline(timeout)
        with _RETRYING:
            pendings = [latest(pending) for pending in report._pendings]
            fresh = self._next_attempts(pendings)
        self._admission.launch(fresh, sum([pending.size for pending in fresh]), deadline)
        pendings = [latest(pending) for pending in pendings]
        for ledger in {pending.ledger: None for pending in pendings}:
            its_own = [pending for pending in pendings if pending.ledger is ledger]
            latch = ledger.watch(dict.fromkeys(its_own))
            try:
                self._pump.wait(latch, deadline - self._clock.monotonic())
            finally:
                if not latch.open:
                    ledger.unwatch(latch, its_own)
        return DeliveryReport(pendings, delivered_before=report._delivered_before)

    def send(
        self,
        topic: str,
        record: bytes | Record,
        *,
        key: bytes | None = None,
        on_delivery: DeliveryListener | None = None,
    ) -> bytes | None:
        """Hand one message over without waiting for its outcome; returns its id (``None`` where ids are off).

        ``on_delivery`` gets the `Delivery`, on a thread of the library; `flush` and `close` tell the rest. Waits only
        for room in the budget, never inside a delivery callback; raises `QueueFull` when there is none.
        """
        # The plain case, written out: each call and each slot here shows in the benchmark.
        route = self._ready.get(topic)
        if route is None or type(record) is not bytes or on_delivery is not None:
            return self._send(topic, record, key, on_delivery)
        ids = self._ids
        number = next(ids.numbers)
        size = len(record) + PLAIN_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes:
                return self._send(topic, record, key, on_delivery)
            size += len(key)
        ledger = self._ledger
        if (
            size > route.max_bytes
            or len(ledger.outstanding) >= ledger.room_messages
            or ledger.entered_bytes - ledger.left_bytes + size > ledger.budget_bytes
        ):
            return self._send(topic, record, key, on_delivery)
        try:
            pending = ledger.spare.pop()
        except IndexError:
            pending = Pending()
            pending.ledger = ledger
            pending.watchers = pending.outcome = pending.successor = None
        pending.message_id = message_id = ids.pack(ids.prefix, number) if route.with_ids else None
        pending.topic = topic
        pending.record = record
        pending.key = key
        pending.size = size
        pending.queued_at = ledger.now
        ledger.entered_bytes += size
        ledger.outstanding[pending] = None
        pump = self._pump
        if pump.idle:
            ledger.tick()
            pending.queued_at = ledger.now
            pump.wake()
        try:
            if message_id is not None:
                headers = [(MESSAGE_ID_HEADER, message_id)]
                route.produce(topic, record, key, ANY_PARTITION, pending, pending, 0, headers)
            else:
                route.produce(topic, record, key, ANY_PARTITION, pending)
        except Exception as error:
            self._routes.refused(pending, error)
        if not number & _HELP_EVERY:
            pump.help()
        return message_id

    def _send(
        self, topic: str, record: bytes | Record, key: bytes | None, on_delivery: DeliveryListener | None
    ) -> bytes | None:
        """`send` for everything but bare bytes to a known topic with room in the budget."""
        self._guard.check()
        self._check_open("send")
        self._ledger.tick()
        pending, own = self._drafts.one(topic, record, key)
        watchers = () if on_delivery is None else (self._pump.listen(on_delivery),)
        # An own id can be attached to, and then its settling must be looked at: () is not None.
        pending.watchers = watchers if watchers or own else None
        if not own or not self._ledger.attach((pending,)):
            patience = 0.0 if self._pump.in_listener() else self.settings.publish_timeout_seconds
            if not self._admission.admit((pending,), pending.size, self._clock.monotonic() + patience):
                full = self._admission.no_room(1, pending.size)
                self._ledger.withdraw(pending, full, own=watchers)
                self._check_open("send")
                raise full
            self._routes.launch(topic, (pending,))
        if self._pump.idle:
            self._pump.wake()
        return pending.message_id

    def flush(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for the sends that no flush has told of yet, ``timeout`` seconds at most.

        The report has those that are not delivered, and counts those that are.
        """
        self._check("flush")
        return self._flush(self._deadline(timeout))

    def close(self, timeout: float | None = None) -> DeliveryReport:
        """Wait for what is on its way, give up what remains after ``timeout`` seconds, release the client.

        Takes at most ``timeout`` + 1 s. The report is `flush`'s, with what was given up as *unknown*. Closing again
        returns the same report.
        """
        self._guard.check()
        self._pump.refuse_inside_listener("close")
        deadline = self._deadline(timeout)
        with self._closing:  # another thread that closes waits for the first one's report
            if self._final is None:
                self._final = self._last_report(deadline)
                self._pump.stop(max(deadline - self._clock.monotonic(), _CLOSE_GRACE_SECONDS / 2))
                with self._ledger.serving:
                    transports = self._routes.release()
                for transport in transports:
                    transport.close(_CLOSE_GRACE_SECONDS / len(transports))
                self._guard.unpin()
            return self._final

    def _last_report(self, deadline: float) -> DeliveryReport:
        self._closed = True
        self._ready.clear()
        told = [self._ledger.untold(watching_all=True)]
        try:
            while self._pump.wait(told[-1].latch, deadline - self._clock.monotonic()) and self._ledger.busy:
                told.append(self._ledger.untold(watching_all=True))  # of senders that were faster than the close
            self._ledger.shut()
            self._routes.abandon()
            told.append(self._ledger.untold(watching_all=True))
            if self._ledger.busy:
                for transport in self._routes.transports():
                    transport.purge()
                self._pump.wait(told[-1].latch, _CLOSE_GRACE_SECONDS / 2)
            left = DeliveryAbandoned("the producer was closed before an answer came")
            self._ledger.settle_all(Outcome.UNKNOWN, left)
        except BaseException:  # Ctrl-C: the next close must tell
            for untold in told:
                self._ledger.disown(untold.latch, untold.pendings, untold.delivered)
            raise
        told.append(self._ledger.untold())
        pendings = [pending for untold in told for pending in untold.pendings]
        return DeliveryReport(pendings, delivered_before=sum([untold.delivered for untold in told]))

    def transaction(self) -> Transaction:
        """A context manager: what is sent in it, and the offsets committed in it, become visible together or not at
        all. Needs ``[kafka] transactional_id``; one at a time."""
        self._check("transaction")
        if self.settings.transactional_id is None:
            raise ConfigurationError("a transaction needs [kafka] transactional_id, unique to each running process")
        if not self._transactions_ready:
            self._routes.main.init_transactions(self.settings.transaction_timeout_seconds)
            self._transactions_ready = True
        return Transaction(self, self._routes.main)

    def health(self) -> ProducerHealth:
        ledger = self._ledger
        return ProducerHealth(
            outstanding_messages=ledger.outstanding_messages,
            outstanding_bytes=ledger.used_bytes,
            oldest_unacknowledged_seconds=ledger.oldest_age(),
            last_error=ledger.last_error,
            failed_listeners=self._pump.listener_failures,
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

    # Into the book

    def _launch_plain(self, topic: str, records: list[bytes | Record], key: bytes | None) -> Bulk | None:
        """Enter and launch a bulk of bytes for a known topic, if there is room for it now; else do nothing."""
        with self._pump.entering():
            route = self._ready.get(topic)
            if route is None:
                return None
            bulk = self._drafts.plain_bulk(topic, records, key, route)
            if bulk is None or not self._ledger.enter_bulk(bulk):
                return None
            try:
                self._routes.launch_bulk(route, bulk)
            except BaseException:
                self._ledger.disown(bulk.latch, self._ledger.break_up(bulk))
                raise
        return bulk

    def _outcome(self, bulk: Bulk, deadline: float) -> DeliveryReport:
        try:
            self._pump.wait(bulk.latch, deadline - self._clock.monotonic())
        except BaseException:
            self._ledger.disown(bulk.latch, self._ledger.break_up(bulk))
            raise
        if bulk.delivered:
            return DeliveryReport(bulk)
        return DeliveryReport(self._ledger.break_up(bulk))

    def _next_attempts(self, pendings: Iterable[Pending]) -> list[Pending]:
        """New attempts at what is worth sending again, linked to the old ones; those to be entered."""
        again = {pending: self._drafts.again(pending) for pending in pendings if _worth_sending(pending)}
        attached = self._ledger.attach([pending for pending in again.values() if pending.message_id is not None])
        for old, pending in again.items():
            old.successor = attached.get(pending, pending)
        return [pending for pending in again.values() if pending not in attached]

    # Waiting and checking

    def _flush(self, deadline: float) -> DeliveryReport:
        untold = self._ledger.untold()
        try:
            self._pump.wait(untold.latch, deadline - self._clock.monotonic())
        except BaseException:  # Ctrl-C: there will be no report, so that the next flush or the close must tell
            self._ledger.disown(untold.latch, untold.pendings, untold.delivered)
            raise
        return DeliveryReport(untold.pendings, delivered_before=untold.delivered)

    def _deadline(self, timeout: float | None) -> float:
        seconds = self.settings.publish_timeout_seconds if timeout is None else timeout
        return self._clock.monotonic() + seconds

    def _check(self, call: str) -> None:
        self._guard.check()
        self._pump.refuse_inside_listener(call)
        self._check_open(call)

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(f"{call} on a producer that was closed")

    # What the client says

    def _on_error(self, error: TransportError) -> None:
        """From within the client's poll, or a thread that asks it something."""
        ledger = getattr(self, "_ledger", None)  # a client may complain while it is being opened
        if ledger is not None:
            ledger.trouble(error)
            if error.fatal:
                ledger.settle_all(Outcome.UNKNOWN, DeliveryRefused(error, permanent=False))

    def _fault(self, error: Any) -> TransportError:
        fault = self._routes.main.fault(error)
        if isinstance(fault, AuthorizationError | FatalError):
            self._ledger.last_error = fault  # of one message, but no message fares better
        if fault.name == "MSG_SIZE_TOO_LARGE":
            self._routes.forget()  # some topic's limit was lowered since it was asked for
        return fault


def _worth_sending(pending: Pending) -> bool:
    """Not what is delivered, still on its way, or refused for what it is."""
    if pending.outcome is None or pending.outcome is Outcome.DELIVERED:
        return False
    return not pending.error.permanent


def _forget_routes(producer: weakref.ref[KafkaProducer]) -> Any:
    """In a child of a fork: `send` must not find a route, so that it comes to look at the guard."""

    def in_child() -> None:
        inherited = producer()
        if inherited is not None:
            inherited._ready = {}

    return in_child
