# SPDX-License-Identifier: Apache-2.0
"""Who serves the client, that is, runs its callbacks. One thread at a time: a sender in passing, a caller that
waits for as long as it waits, and the pump's own thread when neither is there.

A thread alone would halve the speed: every acknowledgement would cost a hand-over of the interpreter lock. Users'
listeners run on the pump's thread only, so never inside somebody's `send`, under locks that the caller holds.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.delivery import Delivery, DeliveryListener
from monasca_common.kafka.errors import InCallbackError
from monasca_common.kafka.producing.latch import Latch
from monasca_common.kafka.producing.ledger import Ledger
from monasca_common.kafka.producing.pending import Pending
from monasca_common.kafka.transport.base import ProducerTransport

LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0  # client-wide errors are noticed at least this often
_BUSY_SECONDS = 0.005  # acknowledgements of sends are collected this often
_ENTER_SECONDS = 0.001  # how long who serves waits for those who are about to wait as well
_FLUSH_SLICE_SECONDS = 0.005  # how long one waiter may keep the others from serving


class Pump:
    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        transports: Callable[[], Sequence[ProducerTransport]],
        eager_callers: int | None = None,
    ) -> None:
        self.idle = False  # its thread sleeps until `wake`
        self.listener_failures = 0
        self._ledger = ledger
        self._clock = clock
        self._transports = transports
        self._eager_callers = eager_callers
        self._serving = ledger.serving
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._waiting: dict[Latch, None] = {}
        self._entering = 0
        self._expected = 0  # callers who were answered together, and are likely to come back together
        self._all_entered = threading.Event()
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
                self._ledger.open_latches()
                self._serving.release()
            if self._waiting:
                self._appoint_heir()

    @contextmanager
    def entering(self) -> Iterator[None]:
        """Around the making of a bulk: who serves waits for it, since each acknowledgement would take the interpreter
        from the maker, and give it back."""
        with self._guard:
            self._entering += 1
        try:
            yield
        finally:
            with self._guard:
                self._entering -= 1

    def wait(self, latch: Latch, timeout: float) -> bool:
        """Serve, or let another caller serve, until the latch opens; whether it did within ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        self._waiting[latch] = None
        if self._all_here():
            self._all_entered.set()
        heir = False
        try:
            while not latch.open:
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    self._wake.set()  # from here on its answer is the thread's to collect
                    return False
                if self._serving.acquire(blocking=heir, timeout=remaining if heir else -1):
                    idle = not self._serve(latch, remaining)
                    heir = False
                    if idle and not latch.open:
                        # Nothing is with the client: the message waits for its topic's limit, or for room.
                        self._clock.wait(latch.lock, min(_BUSY_SECONDS, remaining))
                elif heir:
                    heir = False  # whoever serves did so until our deadline
                else:
                    # Woken to serve in another's place, or because it is open.
                    heir = self._clock.wait(latch.lock, remaining)
            return True
        finally:
            del self._waiting[latch]
            self._appoint_heir()

    def _serve(self, latch: Latch, remaining: float) -> bool:
        """With the ``serving`` lock held, which it gives back; whether the client has anything left to do."""
        try:
            if latch.open:
                return False
            if self._eager_callers is not None and len(self._waiting) > self._eager_callers:
                # Where callers come all the time, the next bulk is always about to enter: a request for each, and
                # its acknowledgements one by one between threads that all want the interpreter, cost a server half
                # of its speed. What lingers goes out together and is answered together.
                return self._linger(min(_FLUSH_SLICE_SECONDS, remaining))
            self._let_others_enter()
            return self._flush(min(_FLUSH_SLICE_SECONDS, remaining))
        finally:
            self._expected = self._ledger.open_latches()
            self._serving.release()

    def _let_others_enter(self) -> None:
        """One flush then carries the bulks of all; the first one back would find itself alone otherwise."""
        if not self._all_here():
            self._all_entered.clear()
            if not self._all_here():
                self._all_entered.wait(_ENTER_SECONDS)

    def _all_here(self) -> bool:
        if self._entering:
            return False
        # Callers who were answered are in `_waiting` until they have woken up.
        return self._expected < 2 or sum([not latch.open for latch in list(self._waiting)]) >= self._expected

    def _appoint_heir(self) -> None:
        """Whoever stops serving wakes one of those who still wait: somebody must serve."""
        with self._guard:
            for latch in list(self._waiting):
                if not latch.open:
                    latch.wake()
                    return

    def listen(self, listener: DeliveryListener) -> ListenerWatcher:
        return ListenerWatcher(listener, self._due, self._wake)

    def stop(self, timeout: float) -> None:
        """End the thread; listeners that are due are still called, and waited for up to ``timeout`` seconds."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception:
                LOG.exception("serving the Kafka client failed")
                self._wake.wait(_IDLE_SECONDS)
        self._call_listeners()

    def _turn(self) -> None:
        self._served = False
        self._sleep()
        # Busy senders and waiters serve by themselves; another would only fight them for the interpreter.
        if not self._served:
            self.help()
        self._call_listeners()

    def _sleep(self) -> None:
        self.idle = True  # before the look at the book: who enters a message after it sees that and wakes us
        busy = self._ledger.busy
        self.idle = not busy
        if not busy:
            self._ledger.spare.clear()
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

    def _linger(self, timeout: float) -> bool:
        self._served = True
        transports = self._transports()
        for transport in transports:
            transport.poll(timeout / len(transports))
        self._ledger.tick()
        return True

    def _flush(self, timeout: float) -> bool:
        self._served = True
        transports = self._transports()
        left = sum([transport.flush(timeout / len(transports)) for transport in transports])
        self._ledger.tick()
        return left > 0

    def _call_listeners(self) -> None:
        while self._due:
            listener, delivery = self._due.popleft()
            try:
                listener(delivery)
            except BaseException:  # SystemExit, say, would end the thread that all listeners need
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
