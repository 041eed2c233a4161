# SPDX-License-Identifier: Apache-2.0
"""The one thread of a client on which its calls wait for brokers, each with a deadline of ours.

librdkafka does not keep the time-outs of some calls (its issues 5456 and 5511): a call with 5 s was not back after
105 s. Nothing can end such a call. So it runs on a helper thread, and its caller leaves at the deadline.
The client is then *poisoned*: nothing more is asked of it, what the call still answers changes nothing, and it stays
referenced until the call returns, because destroying a client waits for its calls.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from monasca_common.kafka.clock import Clock, Signal, SystemClock
from monasca_common.kafka.errors import ClosedError, FatalError, MessagingError, RetriableError
from monasca_common.kafka.safe_log import SafeLogger

LOG = SafeLogger(__name__)

T = TypeVar("T")

GRACE_SECONDS = 5.0  # what a call may take beyond the time-out that it was given
# Real time that a call gets before it is given up, whatever the clock says: a clock that a test moves, or a machine
# that was asleep, leaps over every deadline at once.
_LAST_LOOK_SECONDS = 0.25
_AT_LEAST_SECONDS = 0.1  # for a call that had to wait for the one before it
_SLOW_SECONDS = 30.0  # beyond its time-out: then a poll is reported
_WATCH_SECONDS = 1.0


class ClientCall(Generic[T]):
    """A call of the client. The first claim wins: the helper thread claims it to run it, its caller to drop it."""

    def __init__(self, what: str, run: Callable[[], T], timeout: float, clock: Clock) -> None:
        self.what = what
        self.timeout = timeout
        self.begun_at: float | None = None
        self.over = False
        self.last = False
        self._run: Callable[[], T] | None = run
        self._clock = clock
        self._claim = threading.Lock()
        self._finished = Signal()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        self.begun_at = self._clock.monotonic()
        try:
            assert self._run is not None
            self._result = self._run()
        except BaseException as error:
            self._error = error
        finally:
            self._run = None  # it refers to the client
            self.over = True
            self._finished.set()

    def wait(self, timeout: float) -> bool:
        """Whether it is over within ``timeout`` seconds."""
        return self._wait(self._clock, timeout)

    def look_again(self) -> bool:
        """`wait` for a moment of real time."""
        return self._wait(SystemClock(), _LAST_LOOK_SECONDS)

    def _wait(self, clock: Clock, timeout: float) -> bool:
        self._finished.wait(clock, timeout)
        if self.over:
            self._finished.set()  # it stays over
        return self.over

    def wake(self) -> None:
        """End the `wait` of its caller, whether it is over or not."""
        self._finished.set()

    def overdue(self, now: float) -> bool:
        return self.begun_at is not None and now > self.begun_at + self.timeout + GRACE_SECONDS

    def drop(self) -> bool:
        """Whether it will surely not run."""
        if self._claim.acquire(blocking=False):
            self._run = None
            return True
        return False

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return self._result  # type: ignore[no-any-return]

    def discard(self) -> None:
        self._result = self._error = None


@dataclass(slots=True)
class _Watched:
    """A call on a thread of its caller's."""

    what: str
    timeout: float
    since: float
    reported: bool = False


class ClientThread:
    """Runs the calls of one client one after the other, on a thread that starts with the first.

    ``remedy``: what a poisoned client means to its user, the end of the error's text. ``on_poison`` takes the client
    from everybody else and returns what destroys it; this is kept, and called if the call comes back after all.
    """

    def __init__(self, name: str, clock: Clock, *, remedy: str) -> None:
        self.failure: FatalError | None = None  # set once, when the client is poisoned
        self.on_poison: Callable[[], Callable[[], None]] = lambda: lambda: None
        self._destroy: Callable[[], None] = lambda: None
        self._name = name
        self._clock = clock
        self._remedy = remedy
        self._calls: queue.SimpleQueue[ClientCall[Any]] = queue.SimpleQueue()
        self._current: ClientCall[Any] | None = None
        self._suspect: ClientCall[Any] | None = None
        self._watched: dict[int, _Watched] = {}  # by thread
        self._waiting: set[ClientCall[Any]] = set()
        self._until = math.inf  # see `limit`
        self._lock = threading.RLock()  # held for a few instructions, never during a call; a handler may close in it
        self._thread: threading.Thread | None = None
        self._ended = False
        _watchdog.watch(self)

    def call(self, what: str, run: Callable[[float], T], timeout: float) -> T:
        """What ``run`` returns, which is given the seconds that are left for it. It should not refer to the client
        itself: the frames of an error would keep that alive.

        Raises what it raises, `RetriableError` if the calls before it took all the time or the caller's `limit` comes
        first, and `FatalError` if it has not come back `GRACE_SECONDS` after its time-out, or the client was poisoned
        before. On the helper thread itself, within another call, it runs at once.
        """
        if threading.current_thread() is self._thread:
            return run(timeout)
        self._check_limit(what)
        timeout = max(0.0, timeout)
        deadline = self._clock.monotonic() + timeout
        call = self.submit(
            what,
            lambda: run(max(_AT_LEAST_SECONDS, deadline - self._clock.monotonic())),
            max(timeout, _AT_LEAST_SECONDS),
        )
        try:
            if self.wait(call, timeout) or (call.begun_at is None and call.look_again()):
                return call.result()
            if call.drop():
                self.check()
                raise RetriableError(
                    f"{what} was not sent within {timeout:.1f} s: the calls before it have no answer yet",
                    name="_TIMED_OUT",
                )
            if not self.wait(call, GRACE_SECONDS):
                self._check_limit(what)
            if call.look_again() or not self._poison(call):
                call.wait(math.inf)
                return call.result()
        except BaseException:  # Ctrl-C: it need not begin any more
            call.drop()
            raise
        self.check()
        raise AssertionError("unreachable")

    def submit(self, what: str, run: Callable[[], T], timeout: float) -> ClientCall[T]:
        """Have ``run`` called, without waiting for it. Beyond ``timeout`` and `GRACE_SECONDS` the client is poisoned.

        Raises `FatalError` if it is already, `ClosedError` after `finish`.
        """
        call = ClientCall(what, run, timeout, self._clock)
        self._put(call)
        return call

    def wait(self, call: ClientCall[Any], timeout: float) -> bool:
        """Whether ``call`` is over within ``timeout`` seconds, and before the `limit`."""
        deadline = self._clock.monotonic() + timeout
        self._waiting.add(call)
        try:
            while True:
                left = min(deadline, self._until) - self._clock.monotonic()
                if call.wait(left) or left <= 0:
                    return call.over
        finally:
            self._waiting.discard(call)

    def limit(self, until: float) -> None:
        """Let no caller wait beyond ``until`` (monotonic; `math.inf`: no limit), those that wait already included.

        Takes no lock, because a signal handler may call it.
        """
        self._until = until
        for call in list(self._waiting):
            call.wake()

    def _check_limit(self, what: str) -> None:
        if self._clock.monotonic() >= self._until:
            raise RetriableError(f"{what} has no answer, and its caller stops now", name="_TIMED_OUT")

    def settle(self, timeout: float) -> bool:
        """Wait until nothing is on its way; whether that was so within ``timeout`` seconds."""
        if self._thread is None:
            return True
        return self.failure is None and self.wait(self.submit("settle", lambda: None, math.inf), timeout)

    def finish(self, release: Callable[[], None], timeout: float) -> bool:
        """Call ``release`` after the last call, and end; whether both happened within ``timeout`` seconds.

        A poisoned client is not released: `False`, at once.
        """

        def released() -> None:
            try:
                release()
            except MessagingError as error:
                LOG.warning("%s: close: %s", self._name, error)
            except Exception:
                LOG.exception("%s: close", self._name)

        if self.failure is not None:
            return False
        call = ClientCall("close", released, math.inf, self._clock)
        call.last = True
        try:
            self._put(call)
        except RuntimeError as error:  # no thread can be started, as at the interpreter's exit
            LOG.warning("%s: the client is left open: %s", self._name, error)
            return False
        return call.wait(timeout)

    def check(self) -> None:
        """Raise the `FatalError` of a poisoned client."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # of the last time that it was raised

    @contextmanager
    def watch(self, what: str, timeout: float) -> Iterator[None]:
        """Around a call on the caller's own thread: one that hangs is reported, with its age."""
        thread = threading.get_ident()
        self._watched[thread] = watched = _Watched(what, timeout, self._clock.monotonic())
        try:
            yield
        finally:
            del self._watched[thread]
            if watched.reported:
                age = self._clock.monotonic() - watched.since
                LOG.warning("%s: %s has come back after %.0f s", self._name, what, age)

    def oldest_seconds(self) -> float:
        """How long the oldest call has been under way, 0 if there is none."""
        begun = [watched.since for watched in list(self._watched.values())]
        call = self._current
        if call is not None and call.begun_at is not None:
            begun.append(call.begun_at)
        return max(0.0, self._clock.monotonic() - min(begun)) if begun else 0.0

    def inspect(self) -> None:
        """Called by the watchdog once a second: poison clients that nobody waits for, report calls that cannot be
        bounded."""
        now = self._clock.monotonic()
        call, suspect = self._current, self._suspect
        self._suspect = None
        if self.failure is None and call is not None and call.overdue(now):
            self._suspect = call
            if call is suspect:  # twice: see `_LAST_LOOK_SECONDS`
                self._poison(call)
        for watched in list(self._watched.values()):
            age = now - watched.since
            if not watched.reported and age > watched.timeout + _SLOW_SECONDS:
                watched.reported = True
                LOG.warning(
                    "%s: %s has not come back for %.0f s (its time-out is %.1f s), and nothing can end it: start the "
                    "process again if it lasts",
                    self._name,
                    watched.what,
                    age,
                    watched.timeout,
                )

    def _put(self, call: ClientCall[Any]) -> None:
        with self._lock:
            self.check()
            if self._ended:
                raise ClosedError(f"{call.what}: the client is closed")
            self._ended = call.last
            if self._thread is None:
                # A daemon: a call that hangs must not hold the end of the process as well.
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._calls.put(call)

    def _work(self) -> None:
        while True:
            call = self._current = self._calls.get()
            if self.failure is None or call.last:
                call.run()
            with self._lock:
                self._current = None
            if self.failure is not None:
                self._let_go(call)
                if not self._ended:
                    return
            if call.last:
                return
            del call  # its result, while nothing is asked

    def _poison(self, call: ClientCall[Any]) -> bool:
        """Whether the client is poisoned now, by this call or another: it is not if the call has just come back."""
        with self._lock:
            if self.failure is not None:
                return True
            if self._current is not call:
                return False
            failure = FatalError(
                f"{call.what} has not come back {GRACE_SECONDS:.0f} s after its time-out of {call.timeout:.1f} s: "
                f"nothing more is asked of this client. {self._remedy}",
                name="_FATAL",
                fatal=True,
            )
            self.failure = failure
            self._destroy = self.on_poison()
        LOG.error("%s: %s", self._name, failure)
        return True

    def _let_go(self, call: ClientCall[Any]) -> None:
        """On the helper thread: a call came back after all. What it brought is of no use, but the client may go."""
        call.discard()
        LOG.warning("%s: %s has come back; its client was given up and is destroyed now", self._name, call.what)
        while self._watched:
            time.sleep(_LAST_LOOK_SECONDS)
        self._destroy()
        self._destroy = lambda: None


class _Watchdog:
    """One thread a process, which looks at every client's calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: weakref.WeakSet[ClientThread] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, client: ClientThread) -> None:
        with self._lock:
            self._clients.add(client)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-watchdog", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_WATCH_SECONDS)
            self._look()

    def _look(self) -> None:
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            try:
                client.inspect()
            except Exception:
                LOG.exception("looking at the calls of a Kafka client failed")


_watchdog = _Watchdog()
# In a child of a fork: it has but one thread, and its parent's clients are not its own.
os.register_at_fork(after_in_child=_watchdog.__init__)  # type: ignore[misc]
