# SPDX-License-Identifier: Apache-2.0
"""The connections of a worker: one thread waits for all clients, so that no other thread waits for any.

A thread gets a request when the whole of it is here, and gives back an answer, the whole of it; what a slow client
holds meanwhile is a connection and some bytes. Each wait for a client has an end::

    accepted                    header_seconds
    a header has begun          header_seconds      then 408
    a body has begun            body_seconds        then 408
    (a thread has the request)
    an answer is not yet taken  answer_seconds
    kept alive                  idle_seconds
    last answer sent            _LINGER_SECONDS, longer for a client that still sends quickly

Each end is counted from the beginning of its wait, whatever has come since. Where there are too many connections, or
too many bytes wait, those go that wait longest.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from monasca_common.api.http_messages import (
    HttpAnswer,
    HttpRequest,
    HttpRules,
    MalformedRequest,
    RequestReader,
    Stage,
)
from monasca_common.api.notes import Reason

LOG = logging.getLogger(__name__)

_PIECE_BYTES = 64 * 1024
_MOST_ACCEPTED = 4  # at a turn, so that other workers get some of many that come at once
_MOST_EVENTS = 256  # at a turn, so that answers do not wait for all that clients do
_SWEEP_SECONDS = 0.25
_REPORT_SECONDS = 60.0
_SLOW_BODY_SECONDS = 1.0
# Who still sends when the connection is closed may lose the answer, because the connection is then reset. So FIN ends
# the answer, and what still comes is discarded: longer for a body that comes quickly than for a byte a second.
_LINGER_SECONDS = 1.0
_LINGER_BYTES_A_SECOND = 64 * 1024
_MOST_LINGER_SECONDS = 30.0
_STOP_IDLE_SECONDS = 2.0  # on a connection that is kept alive, a request may be on its way
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ENVIRON = {
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
    "wsgi.input_terminated": True,
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long each wait for a client may take, and how many connections and bytes may wait."""

    header_seconds: float
    body_seconds: float
    answer_seconds: float
    idle_seconds: float
    connections: int
    waiting_bytes: int


class Wait(Enum):
    """What a connection is at; the value says in a log why it was ended."""

    REQUEST = "no request came"
    HEADER = "a header took too long"
    BODY = "a body took too long"
    SERVED = "a thread has the request"
    ANSWER = "an answer was not taken"
    IDLE = "kept alive"
    END = "the last answer is sent"


class HttpConnection:
    """What `Connections` knows of one client."""

    __slots__ = (
        "address",
        "closes",
        "deadline",
        "discarded",
        "fd",
        "looked_at",
        "reader",
        "since",
        "sock",
        "unsent",
        "wait",
        "waiting_bytes",
    )

    def __init__(self, sock: socket.socket, address: str, reader: RequestReader) -> None:
        self.sock = sock
        self.address = address
        self.fd = sock.fileno()
        self.reader = reader
        self.wait = Wait.REQUEST
        self.since = self.deadline = 0.0
        self.unsent = memoryview(b"")
        self.closes = False
        self.looked_at: HttpRequest | None = None  # the header alone of the request whose body is coming
        self.waiting_bytes = self.discarded = 0


class Connections:
    """``serve`` gets each request with its connection and returns at once; some thread calls `answered` later.

    ``refuse`` makes the answer to what is no request, given the client's address. ``look`` gets a request whose body
    comes slowly, without it, and returns at once whether it has time for it; some thread may call `answered_early`
    later. One thread calls everything but `answered`, `answered_early` and `wake`. ``now``: seconds of a monotonic
    clock.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        rules: HttpRules,
        serve: Callable[[HttpConnection, HttpRequest], None],
        refuse: Callable[[str, MalformedRequest], HttpAnswer],
        look: Callable[[HttpConnection, HttpRequest], bool] = lambda _connection, _request: True,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._rules = rules
        self._serve = serve
        self._refuse = refuse
        self._look = look
        self._now = now
        self._listeners: dict[int, Any] = {}
        self._all: dict[int, HttpConnection] = {}
        self._waiting: dict[int, HttpConnection] = {}  # for their clients; first the one that waits longest
        self._waiting_bytes = 0
        self._answers: deque[tuple[HttpConnection, HttpAnswer]] = deque()
        self._early_answers: deque[tuple[HttpConnection, HttpRequest, HttpAnswer]] = deque()
        self._poll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wakeup, select.EPOLLIN)
        self._asleep = self._stopping = False
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._sweep_at = now()
        self._report_at = now() + _REPORT_SECONDS
        self._ended_early: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def listen(self, listeners: Iterable[Any]) -> None:
        for listener in listeners:
            listener.setblocking(False)
            self._listeners[listener.fileno()] = listener
            self._poll.register(listener.fileno(), select.EPOLLIN)

    def turn(self, timeout: float) -> None:
        """Do what can be done; ``timeout`` is how many seconds it waits for something to do, at most."""
        self._asleep = True  # before it looks for answers: who adds one afterwards wakes it
        events = self._poll.poll(0 if self._answers else min(timeout, _SWEEP_SECONDS), _MOST_EVENTS)
        self._asleep = False
        for fd, _ in events:
            if fd in self._all:
                self._guarded(self._ready, self._all[fd])
            elif fd in self._listeners:
                self._accept(self._listeners[fd])
            elif fd == self._wakeup:
                os.eventfd_read(fd)
        for _ in range(len(self._answers)):
            connection, answer = self._answers.popleft()
            self._guarded(self._send, connection, answer)
        while self._early_answers:
            connection, request, answer = self._early_answers.popleft()
            self._guarded(self._send_early, connection, request, answer)
        if self._waiting_bytes > self._limits.waiting_bytes:
            self._relieve_memory()
        if self._now() >= self._sweep_at:
            self._sweep()

    def answered(self, connection: HttpConnection, answer: HttpAnswer) -> None:
        """From any thread, once for each request."""
        self._answers.append((connection, answer))
        if self._asleep:
            self.wake()

    def answered_early(self, connection: HttpConnection, request: HttpRequest, answer: HttpAnswer) -> None:
        """From any thread: the answer, which closes the connection, is sent unless the body has come meanwhile."""
        self._early_answers.append((connection, request, answer))
        if self._asleep:
            self.wake()

    def wake(self) -> None:
        """End the wait of `turn`; from any thread, or a signal's handler."""
        os.eventfd_write(self._wakeup, 1)

    def stop(self) -> None:
        """Take no new connections; end those soon that have sent nothing of a request."""
        self._stopping = True
        for fd in self._listeners:
            self._poll.unregister(fd)
        self._listeners = {}
        soon = self._now() + _STOP_IDLE_SECONDS
        for connection in self._waiting.values():
            if connection.wait in (Wait.REQUEST, Wait.IDLE):
                connection.deadline = min(connection.deadline, soon)

    def close(self) -> None:
        """End all connections, whatever they are at."""
        self._report()
        for connection in list(self._all.values()):
            self._drop(connection)
        self._poll.close()
        os.close(self._wakeup)

    # The life of a connection.

    def _accept(self, listener: Any) -> None:
        for _ in range(_MOST_ACCEPTED):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._out_of_files(error)
                    return
                continue  # it was reset before it was accepted
            sock.setblocking(False)
            if len(self._all) >= self._limits.connections and not self._drop_longest_waiting("too many connections"):
                sock.close()
                continue
            host, port = listener.getsockname()[:2]
            server = {"SERVER_NAME": host, "SERVER_PORT": str(port)}
            base = {**_ENVIRON, **server, "REMOTE_ADDR": address[0], "REMOTE_PORT": str(address[1])}
            connection = HttpConnection(sock, address[0], RequestReader(base, self._rules))
            self._all[connection.fd] = connection
            self._poll.register(connection.fd, 0)
            self._wait(connection, Wait.REQUEST, self._limits.header_seconds)

    def _ready(self, connection: HttpConnection) -> None:
        if connection.wait is Wait.ANSWER:
            self._send_rest(connection)
            return
        try:
            size = connection.sock.recv_into(self._piece)
        except BlockingIOError:
            self._arm(connection)
            return
        except OSError:
            size = 0
        if not size:
            self._drop(connection)
        elif connection.wait is Wait.END:
            self._discard(connection, size)
        else:
            connection.reader.feed(self._piece[:size])
            self._go_on(connection)

    def _go_on(self, connection: HttpConnection) -> None:
        """With what is read of its requests."""
        reader = connection.reader
        if reader.ready:
            request = reader.ready.popleft()
            self._is_served(connection)
            if isinstance(request, HttpRequest):
                self._serve(connection, request)
            else:
                self._send(connection, self._refuse(connection.address, request))
        elif reader.is_ended:
            self._linger(connection)
        elif not reader.waits_for_continue or self._told_to_continue(connection):
            self._hold(connection, reader.held_bytes)
            if reader.stage is Stage.HEADER:
                self._wait_on(connection, Wait.HEADER, self._limits.header_seconds)
            elif reader.stage is Stage.BODY:
                self._wait_on(connection, Wait.BODY, self._limits.body_seconds)
            elif connection.wait is Wait.REQUEST:
                self._arm(connection)
            else:
                self._wait_on(
                    connection, Wait.IDLE, _STOP_IDLE_SECONDS if self._stopping else self._limits.idle_seconds
                )

    def _is_served(self, connection: HttpConnection) -> None:
        self._hold(connection, 0)
        self._waiting.pop(connection.fd, None)
        connection.wait = Wait.SERVED
        connection.looked_at = None

    def _told_to_continue(self, connection: HttpConnection) -> bool:
        connection.reader.waits_for_continue = False
        try:
            if connection.sock.send(_CONTINUE) == len(_CONTINUE):
                return True
        except OSError:
            pass
        self._drop(connection)  # it takes no answers
        return False

    def _send(self, connection: HttpConnection, answer: HttpAnswer) -> None:
        connection.closes = answer.closes
        connection.unsent = memoryview(answer.data)
        self._send_rest(connection)

    def _send_early(self, connection: HttpConnection, request: HttpRequest, answer: HttpAnswer) -> None:
        if connection.looked_at is request:
            self._is_served(connection)
            self._send(connection, answer)

    def _send_rest(self, connection: HttpConnection) -> None:
        try:
            sent = connection.sock.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        connection.unsent = connection.unsent[sent:]
        self._hold(connection, len(connection.unsent))
        if connection.unsent:
            self._wait_on(connection, Wait.ANSWER, self._limits.answer_seconds, events=select.EPOLLOUT)
        elif connection.closes:
            self._linger(connection)
        else:
            self._go_on(connection)

    def _linger(self, connection: HttpConnection) -> None:
        connection.reader.abandon()
        self._hold(connection, 0)
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(connection)
        else:
            self._wait(connection, Wait.END, _LINGER_SECONDS)

    def _discard(self, connection: HttpConnection, size: int) -> None:
        connection.discarded += size
        seconds = _LINGER_SECONDS + connection.discarded / _LINGER_BYTES_A_SECOND
        connection.deadline = connection.since + min(seconds, _MOST_LINGER_SECONDS)
        self._arm(connection)

    def _drop(self, connection: HttpConnection) -> None:
        connection.looked_at = None
        del self._all[connection.fd]
        self._waiting.pop(connection.fd, None)
        self._hold(connection, 0)
        self._poll.unregister(connection.fd)
        connection.sock.close()

    def _guarded(self, step: Callable[..., None], connection: HttpConnection, *arguments: Any) -> None:
        """A fault in the service of one client ends its connection, and no other."""
        try:
            step(connection, *arguments)
        except Exception:
            LOG.exception("a connection is dropped because of a fault of this server")
            if self._all.get(connection.fd) is connection:
                self._drop(connection)

    # Waiting.

    def _wait_on(self, connection: HttpConnection, wait: Wait, seconds: float, *, events: int = select.EPOLLIN) -> None:
        """What it has begun to wait for keeps its deadline."""
        if connection.wait is wait:
            self._arm(connection, events)
        else:
            self._wait(connection, wait, seconds, events=events)

    def _wait(self, connection: HttpConnection, wait: Wait, seconds: float, *, events: int = select.EPOLLIN) -> None:
        self._waiting.pop(connection.fd, None)
        self._waiting[connection.fd] = connection
        connection.wait = wait
        connection.since = self._now()
        connection.deadline = connection.since + seconds
        self._arm(connection, events)

    def _arm(self, connection: HttpConnection, events: int = select.EPOLLIN) -> None:
        """For one event: what a client does while a thread has its request waits in the kernel."""
        self._poll.modify(connection.fd, events | select.EPOLLONESHOT)

    def _hold(self, connection: HttpConnection, size: int) -> None:
        self._waiting_bytes += size - connection.waiting_bytes
        connection.waiting_bytes = size

    def _sweep(self) -> None:
        now = self._now()
        self._sweep_at = now + _SWEEP_SECONDS
        for connection in [each for each in self._waiting.values() if each.deadline <= now]:
            self._guarded(self._expire, connection)
        slow = now - _SLOW_BODY_SECONDS
        for connection in [each for each in self._waiting.values() if each.wait is Wait.BODY and each.since <= slow]:
            if connection.looked_at is None:
                self._guarded(self._look_at, connection)
                if connection.looked_at is None:
                    break  # there is no time for more of them
        if now >= self._report_at:
            self._report()

    def _look_at(self, connection: HttpConnection) -> None:
        connection.looked_at = request = connection.reader.header_alone()
        if not self._look(connection, request):
            connection.looked_at = None

    def _expire(self, connection: HttpConnection) -> None:
        wait = connection.wait
        if wait not in (Wait.IDLE, Wait.END):
            self._ended_early[wait.value] += 1
        if wait in (Wait.HEADER, Wait.BODY):
            part, reason = ("header", Reason.HEADER_TOO_SLOW) if wait is Wait.HEADER else ("body", Reason.BODY_TOO_SLOW)
            message = f"the {part} of the request did not come in time: send it again; nothing of it was taken"
            self._is_served(connection)
            self._send(connection, self._refuse(connection.address, MalformedRequest(408, message, reason)))
        else:
            self._drop(connection)

    def _relieve_memory(self) -> None:
        for connection in [each for each in self._waiting.values() if each.waiting_bytes]:
            if self._waiting_bytes <= max(self._limits.waiting_bytes, connection.waiting_bytes):
                return
            self._ended_early["too many bytes waited"] += 1
            self._drop(connection)

    def _drop_longest_waiting(self, reason: str) -> bool:
        for connection in self._waiting.values():
            self._ended_early[reason] += 1
            self._drop(connection)
            return True
        return False

    def _out_of_files(self, error: OSError) -> None:
        if not self._ended_early["out of open files"]:
            LOG.error(
                "no more connections can be accepted (%s); those that wait longest are dropped: raise the limit of "
                "open files (ulimit -n, LimitNOFILE)",
                error.strerror,
            )
        if not self._drop_longest_waiting("out of open files"):
            time.sleep(_SWEEP_SECONDS)  # threads have all of them: nothing can be done until one is answered

    def _report(self) -> None:
        self._report_at = self._now() + _REPORT_SECONDS
        if self._ended_early:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in self._ended_early.most_common())
            LOG.warning("connections ended early within the last minute: %s", reasons)
            self._ended_early.clear()
