# SPDX-License-Identifier: Apache-2.0
"""gunicorn's worker for the API: one thread for all connections, threads for requests that are whole.

gunicorn's own threads read a request from its connection, so that 100 clients that send a byte a second have all of
them. Granian has a deadline for headers and none for bodies; waitress closes the connection after a 204. This one
takes about half of the processor time of gunicorn's threads as well, or less (figures: ``doc/source/admin/api.rst``).
gunicorn still does what is hard about processes: their start, their signals, their replacement.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from types import FrameType

from gunicorn.workers.base import Worker

from monasca_common.api.access import REQUEST_ID_HEADER
from monasca_common.api.connections import Connections, HttpConnection
from monasca_common.api.http_messages import HttpAnswer, HttpRequest, MalformedRequest, answer_of, error_answer
from monasca_common.api.limits import ALWAYS_SERVED, HEALTH_THREADS, threads_of
from monasca_common.api.notes import ANSWER_IS_KNOWN, HEADER_ALONE, reason_of

LOG = logging.getLogger(__name__)

_NOTIFY_SECONDS = 1.0
_JOIN_SECONDS = 1.0
_MOST_OFFERED = 16


class ApiWorker(Worker):  # type: ignore[misc]  # it has no annotations
    """Its ``app`` is a `server.Server`. Ends in its loop at every signal, never within a signal's handler."""

    _connections: Connections | None = None

    def handle_exit(self, signum: int, frame: FrameType | None) -> None:
        """SIGTERM: take nothing new, and answer the requests in flight."""
        self.alive = False
        if self._connections is not None:
            self._connections.wake()

    def handle_quit(self, signum: int, frame: FrameType | None) -> None:
        """Ctrl-C: end at once, without the time that requests in flight have at a stop."""
        self.cfg.set("graceful_timeout", 0)
        self.handle_exit(signum, frame)

    def run(self) -> None:
        """Until a signal. Called by gunicorn when the application is loaded."""
        requests = _Threads(threads_of(self.app.settings), "api-request", self._answer)
        health = _Threads(HEALTH_THREADS, "api-health", self._answer)

        def serve(connection: HttpConnection, request: HttpRequest) -> None:
            # Health has threads of its own, because requests by the thousand would be before it in the queue.
            threads = health if request.environ["PATH_INFO"] in ALWAYS_SERVED else requests
            threads.put(connection, request)

        # One thread: slow clients with tokens of their own invention must not be a flood for Keystone.
        early = _Threads(1, "api-early", self._answer_early)
        limits, rules = self.app.connection_limits, self.app.http_rules
        self._connections = connections = Connections(limits, rules, serve, self._refuse, early.offer)
        try:
            connections.listen(self.sockets)
            while self.alive and self.ppid == os.getppid():
                self._turn(connections)
            connections.stop()
            began = time.monotonic()
            while len(connections) and time.monotonic() < began + self.cfg.graceful_timeout:
                self._turn(connections)
        finally:
            self._connections = None
            connections.close()
            requests.stop()
            health.stop()
            early.stop()

    _notify_at = 0.0

    def _turn(self, connections: Connections) -> None:
        connections.turn(_NOTIFY_SECONDS)
        now = time.monotonic()
        if now >= self._notify_at:
            self.notify()  # the parent kills a worker that does not turn
            self._notify_at = now + _NOTIFY_SECONDS

    def _answer(self, connection: HttpConnection, request: HttpRequest) -> None:
        closes = not (request.keep_alive and request.is_read and self.alive)
        answer = answer_of(self.wsgi, request, closes=closes)
        connections = self._connections
        if connections is not None:
            connections.answered(connection, answer)

    def _answer_early(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer a request whose body comes slowly, if no body could change the answer."""
        if connection.looked_at is not request:
            return  # it has waited here until it was gone, or its body came
        request.environ[HEADER_ALONE] = True
        answer = answer_of(self.wsgi, request, closes=True)
        connections = self._connections
        if ANSWER_IS_KNOWN in request.environ and connections is not None:
            connections.answered_early(connection, request, answer)

    def _refuse(self, address: str, refused: MalformedRequest) -> HttpAnswer:
        reason = refused.reason or reason_of({}, refused.status)
        request_id = self.wsgi.refused(address, refused.status, reason)
        return error_answer(refused.status, refused.message, (REQUEST_ID_HEADER, request_id))


class _Threads:
    """``work`` is called by ``count`` threads, with what was `put`, in the order in which it came."""

    def __init__(self, count: int, name: str, work: Callable[[HttpConnection, HttpRequest], None]) -> None:
        self._work = work
        self._queue: queue.SimpleQueue[tuple[HttpConnection, HttpRequest] | None] = queue.SimpleQueue()
        # Daemons: an end does not wait for a request that nobody waits for any more.
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, connection: HttpConnection, request: HttpRequest) -> None:
        self._queue.put((connection, request))

    def offer(self, connection: HttpConnection, request: HttpRequest) -> bool:
        """`put` it, unless many wait: whether it was taken."""
        if self._queue.qsize() >= _MOST_OFFERED:
            return False
        self.put(connection, request)
        return True

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        end = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            self._work(*given)
