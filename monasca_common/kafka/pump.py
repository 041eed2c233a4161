# SPDX-License-Identifier: Apache-2.0
"""Who serves the client. One at a time, and whoever waits does it: a sender in passing, a waiter for as long as
it waits, and the pump's own thread for everybody else.

Serving on the caller's thread is what makes `send` twice as fast as with a thread alone (each acknowledgement
would cost a hand-over of the interpreter lock). Users' listeners still run on the pump's thread only, so they
never run inside somebody's `send`, under locks the caller may hold.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.delivery import Delivery, DeliveryListener
from monasca_common.kafka.errors import InCallbackError
from monasca_common.kafka.ledger import Latch, Ledger, Pending
from monasca_common.kafka.transport.base import ProducerTransport

LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0  # client-wide errors are noticed at least this often
_BUSY_SECONDS = 0.005  # acknowledgements of sends are collected this often
_FLUSH_SLICE_SECONDS = 0.005  # how long one waiter may keep the others from serving


class Pump:
    def __init__(self, ledger: Ledger, clock: Clock, transports: Callable[[], Sequence[ProducerTransport]]) -> None:
        self.idle = False  # its thread sleeps until `wake`
        self.listener_failures = 0
        self._ledger = ledger
        self._clock = clock
        self._transports = transports
        self._serving = ledger.serving
        self._wake = threading.Event()
        self._waiting = 0
        self._waiting_guard = threading.Lock()
        self._due: deque[tuple[DeliveryListener, Delivery]] = deque()
        self._stopping = False
        self._served = False
        self._thread = threading.Thread(target=self._run, name="kafka-producer-pump", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def refuse_inside_listener(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise InCallbackError(f"{call} waits for delivery callbacks and cannot be called inside of one: use send")

    def in_listener(self) -> bool:
        return threading.current_thread() is self._thread

    def help(self) -> None:
        """A sender's contribution: collect what has arrived, unless somebody is already at it."""
        if self._serving.acquire(blocking=False):
            try:
                self._poll()
            finally:
                self._serving.release()

    def wait(self, latch: Latch, timeout: float) -> bool:
        """Serve, or let others serve, until the latch opens; whether it did within ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        with self._waiting_guard:
            self._waiting += 1
        try:
            while not latch.open:
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    return False
                self._serve_or_sleep(latch, remaining)
            return True
        finally:
            with self._waiting_guard:
                self._waiting -= 1

    def _serve_or_sleep(self, latch: Latch, remaining: float) -> None:
        # A lone waiter serves by itself; several are served by the thread, or one would be held up by the others.
        if self._waiting == 1 and self._serving.acquire(blocking=False):
            try:
                self._flush(min(_FLUSH_SLICE_SECONDS, remaining))
            finally:
                self._serving.release()
        else:
            self._wake.set()
            if self._clock.wait(latch.lock, remaining):
                latch.lock.release()

    def listen(self, listener: DeliveryListener) -> ListenerWatcher:
        return ListenerWatcher(listener, self._due, self._wake)

    def stop(self) -> None:
        """End the thread; listeners that are due are still called."""
        self._stopping = True
        self._wake.set()
        if not self.in_listener():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception:
                LOG.exception("serving the Kafka client failed")
                self._wake.wait(_IDLE_SECONDS)
        self._call_listeners()

    def _turn(self) -> None:
        if self._waiting and self._serving.acquire(blocking=False):
            try:
                self._flush(_FLUSH_SLICE_SECONDS)
            finally:
                self._serving.release()
        else:
            self._served = False
            self._sleep()
            # Busy senders collect by themselves; a second collector only fights them for the interpreter.
            if not self._served:
                self.help()
        self._call_listeners()

    def _sleep(self) -> None:
        self.idle = True  # before the look at the book: who enters a message after it sees that and wakes us
        busy = bool(self._ledger.outstanding)
        self.idle = not busy
        if not self._due:
            self._wake.wait(_BUSY_SECONDS if busy else _IDLE_SECONDS)
        self.idle = False
        self._wake.clear()
        self._ledger.tick()

    def _poll(self) -> None:
        self._served = True
        for transport in self._transports():
            transport.poll(0)
        self._ledger.tick()

    def _flush(self, timeout: float) -> None:
        transports = self._transports()
        for transport in transports:
            transport.flush(timeout / len(transports))
        self._ledger.tick()

    def _call_listeners(self) -> None:
        while self._due:
            listener, delivery = self._due.popleft()
            try:
                listener(delivery)
            except Exception:
                self.listener_failures += 1
                LOG.exception("a delivery callback for topic %s failed", delivery.topic)


class ListenerWatcher:
    """Has a user's listener called, on the pump's thread, once the message is settled."""

    __slots__ = ("_due", "_listener", "_wake")

    def __init__(
        self,
        listener: DeliveryListener,
        due: deque[tuple[DeliveryListener, Delivery]],
        wake: threading.Event,
    ) -> None:
        self._listener = listener
        self._due = due
        self._wake = wake

    def settled(self, pending: Pending) -> None:
        self._due.append((self._listener, pending.snapshot(0)[1]))
        self._wake.set()
