# SPDX-License-Identifier: Apache-2.0
"""The thread on which a client's calls wait for brokers, each with a deadline.

librdkafka exceeds the time-outs of some calls (its issues 5456 and 5511): a call with a time-out of 5 s had not
returned after 105 s. Such a call cannot be ended, so it runs on a helper thread, and its caller returns at the
deadline. The client is then *poisoned*: it gets no more calls, a late result of the call is ignored, and the client
remains referenced until the call returns, because destroying a client waits for its calls.
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

GRACE_SECONDS = 5.0  # a call may take this much longer than its time-out
# Minimum real time for a call before its caller returns, because a clock that a test advances, or a machine that was
# suspended, passes all deadlines in one step.
_LAST_LOOK_SECONDS = 0.25
_AT_LEAST_SECONDS = 0.1  # the same for a call that had to wait for the previous one
_SLOW_SECONDS = 30.0  # a poll is reported this long after its time-out
_WATCH_SECONDS = 1.0


class ClientCall(Generic[T]):
    """A client call. The first claim wins: the helper thread claims the call to run it, and the caller claims it to
    drop it."""

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
            self._run = None  # because it refers to the client
            self.over = True
            self._finished.set()

    def wait(self, timeout: float) -> bool:
        """Return whether the call ends within ``timeout`` seconds."""
        return self._wait(self._clock, timeout)

    def look_again(self) -> bool:
        """Wait like `wait`, but only for a short time, and in real time."""
        return self._wait(SystemClock(), _LAST_LOOK_SECONDS)

    def _wait(self, clock: Clock, timeout: float) -> bool:
        self._finished.wait(clock, timeout)
        if self.over:
            self._finished.set()  # it remains over
        return self.over

    def wake(self) -> None:
        """End the `wait` of the caller, even if the call is not over."""
        self._finished.set()

    def overdue(self, now: float) -> bool:
        return self.begun_at is not None and now > self.begun_at + self.timeout + GRACE_SECONDS

    def drop(self) -> bool:
        """Claim the call to drop it. Return whether it will definitely not run."""
        if self._claim.acquire(blocking=False):
            self._run = None
            return True
        return False

    def result(self) -> T:
        """Return the result of the call, or raise its exception."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # because its traceback would keep this frame alive
        return self._result  # type: ignore[no-any-return]

    def discard(self) -> None:
        self._result = self._error = None


@dataclass(slots=True)
class _Watched:
    """A call on its caller's thread."""

    what: str
    timeout: float
    since: float
    reported: bool = False


class ClientThread:
    """Runs the calls of one client one after the other, on a thread that starts with the first call.

    ``remedy``: the end of the error's text; it states what a poisoned client means for its user. ``on_poison`` removes
    the client from all other objects and returns the function that destroys it, which is called if the call returns
    later.
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
        # held briefly, never during a call; a signal handler may call `finish` while it is held
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._ended = False
        _watchdog.watch(self)

    def call(self, what: str, run: Callable[[float], T], timeout: float) -> T:
        """Return the result of ``run(left)``, with the seconds left for it. ``run`` should not refer to the client
        itself, because the frames of an error would keep the client alive. Raises the exceptions of ``run``,
        `RetriableError` if earlier calls took all the time or the caller's `limit` comes first, and `FatalError` if
        ``run`` has not returned `GRACE_SECONDS` after its time-out, or the client was already poisoned. Within another
        call on the helper thread, ``run`` is called immediately.
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
                    f"{what} was not sent within {timeout:.1f} s: earlier calls have no response yet",
                    name="_TIMED_OUT",
                )
            if not self.wait(call, GRACE_SECONDS):
                self._check_limit(what)
            if call.look_again() or not self._poison(call):
                call.wait(math.inf)
                return call.result()
        except BaseException:  # after Ctrl-C, the call need not begin
            call.drop()
            raise
        self.check()
        raise AssertionError("unreachable")

    def submit(self, what: str, run: Callable[[], T], timeout: float) -> ClientCall[T]:
        """Queue a call of ``run``, without waiting for it. If it takes longer than ``timeout`` and `GRACE_SECONDS`, the
        client is poisoned.

        Raises `FatalError` if the client is already poisoned, and `ClosedError` after `finish`.
        """
        call = ClientCall(what, run, timeout, self._clock)
        self._put(call)
        return call

    def wait(self, call: ClientCall[Any], timeout: float) -> bool:
        """Return whether ``call`` ends within ``timeout`` seconds and before the `limit`."""
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
        """End all waits of callers, including current waits, at ``until`` (monotonic; `math.inf`: no limit). Takes no
        lock, because a signal handler may call it.
        """
        self._until = until
        for call in list(self._waiting):
            call.wake()

    def _check_limit(self, what: str) -> None:
        if self._clock.monotonic() >= self._until:
            raise RetriableError(f"{what} has no response, and its caller stops waiting", name="_TIMED_OUT")

    def settle(self, timeout: float) -> bool:
        """Wait until no call is in progress; return whether that happened within ``timeout`` seconds."""
        if self._thread is None:
            return True
        return self.failure is None and self.wait(self.submit("settle", lambda: None, math.inf), timeout)

    def finish(self, release: Callable[[], None], timeout: float) -> bool:
        """Call ``release`` after the last call, and end; return whether both happened within ``timeout`` seconds.

        A poisoned client is not released: return `False` immediately.
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
        except RuntimeError as error:  # no thread can start, for example while the interpreter exits
            LOG.warning("%s: the client remains open: %s", self._name, error)
            return False
        return call.wait(timeout)

    def check(self) -> None:
        """Raise the `FatalError` of a poisoned client."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # without the traceback of an earlier raise

    @contextmanager
    def watch(self, what: str, timeout: float) -> Iterator[None]:
        """Watch a call on the caller's thread: report a hanging call, with its age."""
        thread = threading.get_ident()
        self._watched[thread] = watched = _Watched(what, timeout, self._clock.monotonic())
        try:
            yield
        finally:
            del self._watched[thread]
            if watched.reported:
                age = self._clock.monotonic() - watched.since
                LOG.warning("%s: %s has returned after %.0f s", self._name, what, age)

    def oldest_seconds(self) -> float:
        """Return the age of the oldest call in progress, or 0 if there is none."""
        begun = [watched.since for watched in list(self._watched.values())]
        call = self._current
        if call is not None and call.begun_at is not None:
            begun.append(call.begun_at)
        return max(0.0, self._clock.monotonic() - min(begun)) if begun else 0.0

    def inspect(self) -> None:
        """Poison the client if a call is overdue and has no waiting caller, and report unbounded calls. The watchdog
        calls it once a second."""
        now = self._clock.monotonic()
        call, suspect = self._current, self._suspect
        self._suspect = None
        if self.failure is None and call is not None and call.overdue(now):
            self._suspect = call
            if call is suspect:  # checked twice; see `_LAST_LOOK_SECONDS`
                self._poison(call)
        for watched in list(self._watched.values()):
            age = now - watched.since
            if not watched.reported and age > watched.timeout + _SLOW_SECONDS:
                watched.reported = True
                LOG.warning(
                    "%s: %s has not returned for %.0f s (time-out: %.1f s) and cannot be cancelled: restart the "
                    "process if this persists",
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
            if self._thread is None:
                # A daemon thread, because a hanging call must not prevent the process from exiting.
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._thread = thread  # only after the start, which may fail
            self._ended = call.last
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
            del call  # free its result while waiting for the next call

    def _poison(self, call: ClientCall[Any]) -> bool:
        """Return whether the client is now poisoned, by this or another call; false if the call has just returned."""
        with self._lock:
            if self.failure is not None:
                return True
            if self._current is not call:
                return False
            failure = FatalError(
                f"{call.what} has not returned {GRACE_SECONDS:.0f} s after its time-out of {call.timeout:.1f} s: "
                f"this client gets no more calls. {self._remedy}",
                name="_FATAL",
                fatal=True,
            )
            self.failure = failure
            self._destroy = self.on_poison()
        LOG.error("%s: %s", self._name, failure)
        return True

    def _let_go(self, call: ClientCall[Any]) -> None:
        """Destroy the client of a call that returned late, on the helper thread, and ignore the result."""
        call.discard()
        LOG.warning("%s: %s has returned; its client was abandoned and is now destroyed", self._name, call.what)
        while self._watched:
            time.sleep(_LAST_LOOK_SECONDS)
        self._destroy()
        self._destroy = lambda: None


class _Watchdog:
    """The thread that checks the calls of all clients in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: weakref.WeakSet[ClientThread] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def watch(self, client: ClientThread) -> None:
        with self._lock:
            self._clients.add(client)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="kafka-watchdog", daemon=True)
                thread.start()
                self._thread = thread

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
                LOG.exception("checking the calls of a Kafka client failed")


_watchdog = _Watchdog()
# Called in a forked child, which has only one thread and must not use its parent's clients.
os.register_at_fork(after_in_child=_watchdog.__init__)  # type: ignore[misc]
