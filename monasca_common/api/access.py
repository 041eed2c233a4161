# SPDX-License-Identifier: Apache-2.0
"""The outermost layer: adds an id to each response and to the log lines of its request, writes the access log, and
counts requests for ``/metrics``.

Each request only appends a tuple. Lines and counts are derived from many tuples at a time, because the logging module
takes longer to write a line than the API takes to serve a request.
"""

from __future__ import annotations

import logging
import random
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from logging.handlers import WatchedFileHandler
from typing import Any, NamedTuple

import msgspec
from oslo_context.context import RequestContext, get_current

from monasca_common.api import problems
from monasca_common.api.body import discard
from monasca_common.api.limits import Environ, StartResponse, WsgiApp
from monasca_common.api.log_fields import COUNTS, NO_MESSAGES, TENANT, MessageCounts, reason_of
from monasca_common.kafka.errors import ConfigurationError

LOG = logging.getLogger(__name__)

OTHER = "other"  # label value for unknown routes and methods
REQUEST_ID_HEADER = "X-Openstack-Request-Id"
STDERR, OFF = "stderr", "off"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_FLUSH_SECONDS = 0.5
_MAX_PENDING_LINES = 100_000
_GLOBAL_ID = re.compile(r"req-[0-9a-f-]{36}")


class Served(NamedTuple):
    """A completed request. ``at``: the time of its completion, in seconds since the epoch."""

    at: float
    request_id: str
    global_request_id: str
    client: str
    tenant: str
    method: str
    route: str
    status: int
    answer_bytes: int
    seconds: float
    counts: MessageCounts
    reason: str


class AccessLine(msgspec.Struct, omit_defaults=True):
    """A line of the access log, without the query string. Fields from ``delivered`` on are omitted if empty or 0."""

    time: str
    request_id: str
    client: str
    tenant: str
    method: str
    route: str
    status: int
    bytes: int
    ms: float
    delivered: int = 0
    failed: int = 0
    unknown: int = 0
    rejected: int = 0
    reason: str = ""
    global_request_id: str = ""


class Routes:
    """The routes of the application. Logs and metrics identify a request by its route, without the values in its path.

    ``templates``: Falcon's URI templates; a part in braces matches any text without a slash.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        stripped = {_stripped(template) for template in templates}
        self._plain = frozenset(template for template in stripped if "{" not in template)
        self._patterns = [
            (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))), template)
            for template in sorted(stripped - self._plain)
        ]

    def find(self, path: str) -> str:
        """Return the template that matches a path, or `OTHER` if none does."""
        path = _stripped(path)
        if path in self._plain:
            return path
        return next((template for pattern, template in self._patterns if pattern.fullmatch(path)), OTHER)


def _stripped(path: str) -> str:
    return path.rstrip("/") or "/"


class Access:
    """The outermost layer of the application; its owner closes it. Thread-safe.

    ``count``: called with a batch of completed requests and the number of requests in flight; returns whether to call
    it again even without new requests. ``handler``: receives the lines of a batch as one record.
    """

    def __init__(
        self,
        app: WsgiApp,
        templates: Iterable[str],
        count: Callable[[Sequence[Served], int], bool],
        handler: logging.Handler | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._app = app
        self._routes = Routes(templates)
        self._count = count
        self._handler = handler
        self._now = now
        self._served: deque[Served] = deque()
        self._in_flight: dict[str, None] = {}
        self._lock = threading.Lock()
        self._due = False
        self._lines: list[bytes] = []
        self._lost = 0
        self._writing = threading.Lock()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        began = time.perf_counter()
        request_id = new_request_id()
        global_id = environ.get("HTTP_X_OPENSTACK_REQUEST_ID", "")
        if global_id and not _GLOBAL_ID.fullmatch(global_id):
            global_id = ""
        self._in_flight[request_id] = None
        if not self._due:
            self._flush_soon()
        context: Any = get_current() or RequestContext()
        context.request_id, context.global_request_id, context.project_id = request_id, global_id or None, None
        status = 500

        def started(line: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            nonlocal status
            status = int(line[:3])
            headers.append((REQUEST_ID_HEADER, request_id))
            return start_response(line, headers, *more)

        try:
            body = self._answer(environ, started)
        finally:
            del self._in_flight[request_id]
            context.request_id = context.global_request_id = context.project_id = None
        self._served.append(
            Served(
                self._now(),
                request_id,
                global_id,
                environ.get("REMOTE_ADDR", ""),
                environ.get(TENANT, ""),
                # Clients can send any method, so unchecked methods would create any number of label values.
                environ["REQUEST_METHOD"] if environ["REQUEST_METHOD"] in _METHODS else OTHER,
                self._routes.find(environ.get("PATH_INFO", "")),
                status,
                sum(map(len, body)),
                time.perf_counter() - began,
                environ.get(COUNTS, NO_MESSAGES),
                reason_of(environ, status),
            )
        )
        return _RefusedAnswer(body, environ) if status >= 400 else body

    def _answer(self, environ: Environ, start_response: StartResponse) -> list[bytes]:
        """Return the whole body, or the body of an error if the application fails."""
        try:
            body = self._app(environ, start_response)
            if isinstance(body, list):
                return body
            try:
                return list(body)
            finally:
                getattr(body, "close", lambda: None)()
        except Exception as error:
            answer = problems.failed(environ, error)
            environ.pop(COUNTS, None)
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))]
            start_response("500 Internal Server Error", headers, sys.exc_info())
            return [answer]

    def flush(self) -> bool:
        """Count the requests completed so far; log them unless another thread does. Return whether to flush again."""
        with self._lock:
            served = [self._served.popleft() for _ in range(len(self._served))]
            again = self._count(served, len(self._in_flight))
            if self._handler is not None:
                room = max(0, _MAX_PENDING_LINES - len(self._lines))
                self._lines += [access_line(each) for each in served[:room]]
                self._lost += len(served[room:])
        if self._lines and self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()
        return again

    def _write(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            lost, self._lost = self._lost, 0
        lost_line = [b'{"lost_lines":%d}' % lost] if lost else []
        assert self._handler is not None
        try:
            self._handler.handle(logging.makeLogRecord({"msg": b"\n".join(lines + lost_line).decode()}))
        except OSError as error:  # the file was rotated, and the new one cannot be opened
            LOG.error("%d lines of the access log are lost: %s", len(lines), error)
            with self._lock:
                self._lost += lost + len(lines)

    def _flush_soon(self) -> None:
        self._due = True
        timer = threading.Timer(_FLUSH_SECONDS, self._flush_due)
        timer.name, timer.daemon = "api-access-log", True
        try:
            timer.start()
        except RuntimeError:  # no thread can be started now
            self._due = False

    def _flush_due(self) -> None:
        self._due = False
        if self.flush() and not self._due:
            self._flush_soon()

    def close(self) -> None:
        self.flush()
        if self._handler is not None:
            self._handler.close()


class _RefusedAnswer(list[bytes]):
    """An error response. After sending it, the server calls `close`, which reads the rest of the request's body. The
    operating system resets a connection that is closed with unread data, and the client or the proxy may then lose the
    response."""

    def __init__(self, body: list[bytes], environ: Environ) -> None:
        super().__init__(body)
        self._environ = environ

    def close(self) -> None:
        discard(self._environ)


def log_handler(where: str) -> logging.Handler | None:
    """Return the log handler for a file's path (the file is reopened after a rotation) or `STDERR`; ``None`` for `OFF`.

    Raises `ConfigurationError` for a file that cannot be written.
    """
    if where == OFF:
        return None
    if where == STDERR:
        return logging.StreamHandler()
    try:
        return WatchedFileHandler(where, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"access_log in group [api] is {where}, which cannot be written ({error.strerror}): correct the path, or "
            "the permissions of its folder"
        ) from None


def access_line(served: Served) -> bytes:
    second, milliseconds = divmod(int(served.at * 1000), 1000)
    return msgspec.json.encode(
        AccessLine(
            f"{_iso_second(second)}.{milliseconds:03d}Z",
            served.request_id,
            served.client,
            served.tenant,
            served.method,
            served.route,
            served.status,
            served.answer_bytes,
            round(served.seconds * 1000, 3),
            *served.counts,
            served.reason,
            served.global_request_id,
        )
    )


def new_request_id() -> str:
    """Return a request id in the format of OpenStack's services. Ids are unique, but not secret."""
    text = f"{random.getrandbits(128):032x}"
    return f"req-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@lru_cache(maxsize=4)
def _iso_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
