# SPDX-License-Identifier: Apache-2.0
"""Serves the client, that is, runs its callbacks. One thread at a time leads: a sender in passing, a caller for as
long as it waits, and the poller's own thread when there is neither.

That thread alone would halve the speed: every acknowledgement would cost a hand-over of the interpreter lock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from monasca_common.kafka.clock import Clock, Signal, SystemClock
from monasca_common.kafka.errors import InCallbackError
from monasca_common.kafka.producer.in_flight import Latch
from monasca_common.kafka.producer.ledger import Ledger, let_go
from monasca_common.kafka.transport.base import ProducerTransport

LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0  # client-wide errors are noticed at least this often
_BUSY_SECONDS = 0.005  # acknowledgements of sends are collected this often
_ENTER_SECONDS = 0.001  # how long the serving thread waits for callers that are about to wait as well
_FLUSH_SLICE_SECONDS = 0.005  # how long one waiter may keep the others from serving

_REAL_TIME = SystemClock()  # of the poller's own thread, whatever the clock


class Poller:
    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        transports: Callable[[], Sequence[ProducerTransport]],
        eager_callers: int | None = None,
    ) -> None:
        self.idle = False  # its thread sleeps until `wake`, or is with listeners
        self._ledger = ledger
        self._clock = clock
        self._transports = transports
        self._eager_callers = eager_callers
        self._wake = Signal()  # unlike the library's events, Ctrl-C within `set` leaves no lock taken
        self._guard = threading.RLock()  # a signal handler that closes may interrupt its owner
        self._waiting: dict[Latch, None] = {}
        self._preparing: dict[int, None] = {}  # threads
        self._expected = 0  # callers who were answered together, and are likely to come back together
        self._all_entered = Signal()
        self._listeners = ledger.listeners
        self._listeners.wake = self._wake.set
        self._stopping = False
        self._served = False
        self.start()

    def start(self) -> None:
        """Start its thread; one that was started before ends as soon as its call of the client comes back."""
        self._thread = threading.Thread(target=self._run, name="kafka-producer-poller", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def refuse_inside_listener(self, call: str) -> None:
        if threading.current_thread() is self._thread:
            raise InCallbackError(f"{call} waits for delivery callbacks and cannot be called inside of one: use send")

    def in_listener(self) -> bool:
        return threading.current_thread() is self._thread

    def poll_in_passing(self) -> None:
        """Collect what has arrived, in a sender's thread, unless another thread does so already."""
        serving = self._ledger.serving
        try:
            if serving.acquire(blocking=False):
                try:
                    self._poll()
                finally:
                    self._ledger.open_latches()
                    serving.release()
                if self._waiting:
                    self._wake_next_leader()
            else:
                self._ledger.tick()  # whoever serves may be held up
        except BaseException:
            let_go(serving)
            raise

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """A block that makes a bulk: the serving thread waits for it, because each acknowledgement would take the
        interpreter from this thread and give it back."""
        thread = threading.get_ident()
        try:
            self._preparing[thread] = None
            yield
        finally:
            self._preparing.pop(thread, None)

    def wait(self, latch: Latch, timeout: float) -> bool:
        """Serve, or let another caller serve, until the latch opens; whether it did within ``timeout`` seconds."""
        deadline = self._clock.monotonic() + timeout
        leads = False  # it was woken to lead, whoever else is at it
        serving = self._ledger.serving
        try:
            self._waiting[latch] = None
            if self._all_here():
                self._all_entered.set()
            while not latch.open:
                remaining = deadline - self._clock.monotonic()
                if remaining <= 0:
                    self._wake.set()  # from here on its answer is the thread's to collect
                    return False
                serving = self._ledger.serving  # another one, once it was taken over
                if serving.acquire(blocking=leads, timeout=remaining if leads else -1):
                    idle = not self._serve(serving, latch, remaining)
                    leads = False
                    if idle and not latch.open:
                        # Nothing is with the client: the message waits for its topic's limit, or for room.
                        latch.wait(self._clock, min(_BUSY_SECONDS, remaining))
                elif leads:
                    leads = False  # another thread served until our deadline
                else:
                    # Woken to serve in another's place, or because it is open.
                    leads = latch.wait(self._clock, remaining)
            return True
        except BaseException:
            let_go(serving)
            raise
        finally:
            self._waiting.pop(latch, None)
            self._wake_next_leader()

    def _serve(self, serving: threading.RLock, latch: Latch, remaining: float) -> bool:
        """With ``serving`` held, which it gives back; whether the client has anything left to do."""
        try:
            if latch.open or serving is not self._ledger.serving:
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
            serving.release()

    def _let_others_enter(self) -> None:
        """Wait briefly for other callers, so that one flush carries the bulks of all of them."""
        if not self._all_here():
            self._all_entered.wait(_REAL_TIME, 0)
            if not self._all_here():
                self._all_entered.wait(_REAL_TIME, _ENTER_SECONDS)

    def _all_here(self) -> bool:
        if self._preparing:
            return False
        # Callers who were answered are in `_waiting` until they have woken up.
        return self._expected < 2 or sum([not latch.open for latch in list(self._waiting)]) >= self._expected

    def _wake_next_leader(self) -> None:
        """Wake one of the waiting callers when this thread stops serving, because one of them must serve."""
        with self._guard:
            for latch in list(self._waiting):
                if not latch.open:
                    latch.set()
                    return

    def stop(self, timeout: float) -> None:
        """End the thread; listeners that are due are still called, and waited for up to ``timeout`` seconds."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping and threading.current_thread() is self._thread:
            try:
                self._turn()
            except Exception:
                LOG.exception("serving the Kafka client failed")
                self.idle = True
                self._wake.wait(_REAL_TIME, _IDLE_SECONDS)
        self._listeners.call_those_due()

    def _turn(self) -> None:
        self._served = False
        self._sleep()
        # Busy senders and waiters serve by themselves; another would only fight them for the interpreter.
        if not self._served:
            self.poll_in_passing()
        if self._listeners.due:
            self.idle = True  # for as long as they take: whoever sends meanwhile looks at the clock
            self._listeners.call_those_due()
            self.idle = False

    def _sleep(self) -> None:
        self.idle = True  # before the check of the book: a thread that enters a message later sees it and wakes us
        busy = self._ledger.busy
        self.idle = not busy
        if not busy:
            self._ledger.spare.clear()
        if not self._listeners.due:
            self._wake.wait(_REAL_TIME, _BUSY_SECONDS if busy else _IDLE_SECONDS)
        self.idle = False
        self._ledger.tick()

    def drained(self) -> bool:
        """Whether the clients have answered for all that they had."""
        with self._ledger.serving:
            return sum([transport.flush(0) for transport in self._transports()]) == 0

    def _poll(self) -> None:
        self._served = True
        for transport in self._transports():
            transport.poll(0)
        self._ledger.served()

    def _linger(self, timeout: float) -> bool:
        self._served = True
        transports = self._transports()
        for transport in transports:
            transport.poll(timeout / len(transports))
        self._ledger.served()
        return True

    def _flush(self, timeout: float) -> bool:
        self._served = True
        transports = self._transports()
        left = sum([transport.flush(timeout / len(transports)) for transport in transports])
        self._ledger.served()
        return left > 0
