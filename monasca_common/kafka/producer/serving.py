# SPDX-License-Identifier: Apache-2.0
"""The serving thread of a producer: the only one that polls and flushes its clients and collects outcomes. A separate
thread, started when the first listener is due, calls listeners, so that a hanging listener delays no outcome.

While a caller waits, the serving thread flushes in short slices, so that linger does not delay it. Callers whose
outcomes arrived together usually call again together: the next flush waits up to a millisecond for them, because one
request with all their bulks costs the client and the broker much less than a request for each.

An idempotent librdkafka (2.16) uses a whole CPU core while a flush has messages queued behind others in flight, so
after some slices without outcomes or new callers, the thread mostly polls. Without callers, it polls every few
milliseconds, and sleeps while nothing is in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from monasca_common.kafka.clock import Signal, SystemClock
from monasca_common.kafka.producer.table import Table, Waiter
from monasca_common.kafka.safe_log import SafeLogger
from monasca_common.kafka.transport.producer_clients import ProducerClients

LOG = SafeLogger(__name__)

_IDLE_SECONDS = 1.0  # client-wide errors are collected at least this often
_BUSY_SECONDS = 0.005  # outcomes of sends are collected this often
_SLICE_SECONDS = 0.005
_MOST_EMPTY_FLUSHES = 4  # flushes without outcomes or new callers; together they take longer than most round trips
_FLUSH_PAUSE_SECONDS = 0.1  # the pause between later flushes
_RETURN_SECONDS = 0.001  # callers usually call again within this time

_REAL_TIME = SystemClock()  # for the thread's own waits, independent of the producer's clock


class Serving:
    def __init__(self, table: Table, clients: ProducerClients, request_limits: Callable[[], None]) -> None:
        self.idle = False  # the thread sleeps until `wake`
        self.failed_listeners = 0
        self._table = table
        self._clock = table.clock
        self._clients = clients
        self._request_limits = request_limits
        self._callers = 0  # number of callers that waited for the last outcomes
        self._return_deadline = 0.0
        self._empty_flushes = 0  # since the latest outcome or caller
        self._next_flush = 0.0
        self._wake = Signal()
        self._stopping = False
        self._ended = False  # no more listeners become due
        self._due = Signal()
        self._listening: threading.Thread | None = None
        self.start()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="kafka-producer", daemon=True)
        self._thread.start()

    def retire(self) -> None:
        """Ask the thread to end once its current client call returns."""
        self._thread = threading.Thread()

    def wake(self) -> None:
        self._wake.set()

    def wait(self, is_over: Callable[[], bool], deadline: float) -> bool:
        """Wait until ``is_over()``, which may check any producer. Return whether it was over in time."""
        waiter = Waiter(is_over)
        try:
            self._table.waiters[waiter] = None
            with self._table.lock:
                waiter.over = is_over()
            if not waiter.over:
                self._empty_flushes = 0
                self._wake.set()
            while not waiter.over:
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    return False
                waiter.wait(self._clock, remaining)
            return True
        finally:
            self._table.waiters.pop(waiter, None)

    def stop(self, timeout: float) -> None:
        """End the threads. Due listeners are still called; wait up to ``timeout`` seconds for them."""
        deadline = _REAL_TIME.monotonic() + timeout
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)
        self._ended = True
        if self._table.due:
            self._notify()
        if self._listening is not None:
            self._due.set()
            self._listening.join(max(0.0, deadline - _REAL_TIME.monotonic()))

    def _run(self) -> None:
        with self._table.as_caller():
            while not self._stopping and threading.current_thread() is self._thread:
                try:
                    self._turn()
                except Exception:
                    LOG.exception("serving the Kafka client failed")
                    self.idle = True
                    self._wake.wait(_REAL_TIME, _IDLE_SECONDS)

    def _turn(self) -> None:
        self._wait_for_callers()
        if not (self._waiting() or self._stopping):
            self._sleep()
        self._request_limits()
        try:
            self._collect()
        finally:
            if self._table.due:
                self._notify()

    def _sleep(self) -> None:
        self.idle = True  # set before the table is read, so that a later reservation wakes this thread
        busy = self._table.in_flight()[0] > 0
        self.idle = not busy
        self._wake.wait(_REAL_TIME, _BUSY_SECONDS if busy else _IDLE_SECONDS)
        self.idle = False

    def _wait_for_callers(self) -> None:
        """Wait until as many callers wait as before the last outcomes, at most a millisecond after these outcomes."""
        while self._waiting() < self._callers and not self._stopping:
            remaining = self._return_deadline - _REAL_TIME.monotonic()
            if remaining <= 0:
                return
            self._wake.wait(_REAL_TIME, remaining)

    def _waiting(self) -> int:
        return len([waiter for waiter in list(self._table.waiters) if not waiter.over])

    def _collect(self) -> None:
        """Collect the outcomes of one call of each client."""
        waiting, tap = self._waiting(), self._clients.tap
        now = _REAL_TIME.monotonic()
        flush = waiting > 0 and (self._empty_flushes < _MOST_EMPTY_FLUSHES or now >= self._next_flush)
        if flush:
            self._empty_flushes, self._next_flush = self._empty_flushes + 1, now + _FLUSH_PAUSE_SECONDS
        for outcomes in self._clients.collect(_SLICE_SECONDS if waiting else 0, flush=flush):
            if outcomes.sequences or outcomes.undelivered:
                self._empty_flushes = 0
            self._callers, self._return_deadline = self._waiting(), _REAL_TIME.monotonic() + _RETURN_SECONDS
            try:
                if outcomes.counts and tap is not None:
                    tap.add(outcomes.counts)  # before waking a caller that may end its transaction
            finally:
                self._table.settle(outcomes)  # also if the tap raises
        if waiting and not self._clients.have_queued():
            self._wake.wait(_REAL_TIME, _BUSY_SECONDS)  # a message waits for a limit, or a caller for room

    def _notify(self) -> None:
        if self._listening is None:
            listening = threading.Thread(target=self._listen, name="kafka-producer-listeners", daemon=True)
            listening.start()
            self._listening = listening  # only after the start, which may fail
        self._due.set()

    def _listen(self) -> None:
        with self._table.as_caller():
            while not self._ended:
                self._due.wait(_REAL_TIME, None)
                self._call_listeners()
            self._call_listeners()  # listeners that became due after the thread's last pass

    def _call_listeners(self) -> None:
        due = self._table.due
        while due:
            listener, attempt = due.popleft()
            try:
                listener(attempt.snapshot(0)[1])
            except BaseException:  # for example SystemExit, which would end the thread that all listeners need
                self.failed_listeners += 1
                LOG.exception("a delivery callback for topic %s failed", attempt.bulk.topic)
            self._table.listener_returned(attempt)
