# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 as bytes: what a client sends becomes requests, under limits, and an answer becomes what is sent.

The grammar is llhttp's, the parser of Node.js, which refuses whatever two parsers could read differently. No socket
and no clock is here.
"""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
import msgspec

from monasca_common.api.access import REQUEST_ID_HEADER
from monasca_common.api.limits import Environ, WsgiApp
from monasca_common.api.problems import error_body, failed

_MOST_TARGET_BYTES = 8 * 1024
_MOST_HEADER_BYTES = 64 * 1024
_MOST_HEADERS = 100
_MOST_PIPELINED = 16  # requests that wait on their connection for the answer to the one before
# A chunk costs as much time as some hundred bytes: chunks of a byte would make five million of a body.
_FREE_CHUNKS = 1000
_LEAST_CHUNK_BYTES = 16
_MOST_BODY_OVERHEAD_BYTES = 64 * 1024  # in pieces that hold no byte of the body: trailers, extensions of chunks

_ONLY_ONCE = frozenset({"HTTP_HOST", "CONTENT_TYPE", "CONTENT_LENGTH"})


class Stage(Enum):
    """What a client is at."""

    NOTHING = "nothing"
    HEADER = "header"
    BODY = "body"


@dataclass(slots=True)
class HttpRequest:
    """A request for the application. ``is_read``: nothing of its body is left to come."""

    environ: Environ
    keep_alive: bool
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class MalformedRequest:
    """What is answered instead of a request, and ends the connection: where the next one would begin is unknown.

    ``reason``: for counts, as `notes.Reason` has them; empty: as the status says.
    """

    status: int
    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HttpRules:
    """What a worker takes. ``body_wanted``: False where the answer does not depend on the body."""

    max_body_bytes: int
    body_wanted: Callable[[Environ], bool] = lambda _environ: True
    is_trusted_proxy: Callable[[str], bool] = lambda _address: False


class _Stop(Exception):
    """Ends the parser's work on what it was fed."""


class RequestReader:
    """`feed` puts into `ready`, in order, what a client asks for.

    A request is ready when it is whole. One whose body the application would not read is ready with its header, and
    is the last of its connection.
    """

    def __init__(self, base: Mapping[str, Any], rules: HttpRules) -> None:
        """``base``: what is the same in the environ of all requests of the connection."""
        self.ready: deque[HttpRequest | MalformedRequest] = deque()
        self.stage = Stage.NOTHING
        self.is_ended = False  # nothing more is read here
        self.waits_for_continue = False
        self._base = base
        self._rules = rules
        self._parser = httptools.HttpRequestParser(self)
        self._only_framing = False
        self._begin()

    @property
    def held_bytes(self) -> int:
        """Of the request that is not whole yet."""
        return self._header_bytes + len(self._body)

    def header_alone(self) -> HttpRequest:
        """The request whose body is coming, without it."""
        assert self._request is not None
        environ = {**self._request.environ, "wsgi.input": io.BytesIO()}
        return HttpRequest(environ, keep_alive=False, is_read=False)

    def feed(self, data: memoryview) -> None:
        if self.is_ended:
            return
        was_in_body, had_bytes = self.stage is Stage.BODY, len(self._body)
        try:
            self._parser.feed_data(data)
            self._bound_unfinished(len(data), no_progress=was_in_body and len(self._body) == had_bytes)
        except httptools.HttpParserUpgrade as upgrade:
            self._continue_without_upgrade(data[upgrade.args[0] :])
        except _Stop:
            pass
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Stop):
                raise
        except httptools.HttpParserError as error:
            if not self.is_ended:
                self._end(MalformedRequest(400, f"the request is not HTTP/1.1 ({error}): correct it"))

    def abandon(self) -> None:
        """Read nothing more, and keep nothing of what was read."""
        self.is_ended = True
        self.ready.clear()
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = self._overhead_bytes = self._chunks = 0
        self._body: bytes | bytearray = b""
        self._request: HttpRequest | None = None

    def _end(self, refused: MalformedRequest | None = None) -> None:
        self.is_ended = True
        if refused is not None:
            self.ready.append(refused)

    def _refuse(self, status: int, message: str) -> None:
        self._end(MalformedRequest(status, message))
        raise _Stop

    def _bound_unfinished(self, size: int, *, no_progress: bool) -> None:
        if self.stage is Stage.HEADER:
            self._header_bytes += size
            self._bound_header()
        elif self.stage is Stage.BODY and no_progress:
            self._overhead_bytes += size
            if self._overhead_bytes > _MOST_BODY_OVERHEAD_BYTES:
                self._refuse(400, "the body has too much between its chunks or behind them: leave it out")

    def _bound_header(self) -> None:
        if len(self._target) > _MOST_TARGET_BYTES:
            self._refuse(414, f"the URL has more than {_MOST_TARGET_BYTES} bytes: shorten it")
        if self._header_bytes > _MOST_HEADER_BYTES or len(self._headers) > _MOST_HEADERS:
            self._refuse(431, f"more than {_MOST_HEADERS} headers, or {_MOST_HEADER_BYTES} bytes of them: send less")

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._only_framing:
            return
        if len(self.ready) >= _MOST_PIPELINED:
            self._end()
            raise _Stop
        self._begin()
        self.stage = Stage.HEADER

    def on_url(self, part: bytes) -> None:
        if not self._only_framing:
            self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is Stage.HEADER:  # not a trailer, which has no say
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._only_framing:
            self._only_framing = False
            return
        self._header_bytes = len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers)
        self._bound_header()
        self._request = request = HttpRequest(self._environ(), self._parser.should_keep_alive())
        self.stage = Stage.BODY
        environ = request.environ
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if not length and "HTTP_TRANSFER_ENCODING" not in environ:
            return
        if length > self._rules.max_body_bytes or not self._rules.body_wanted(environ):
            self._deliver(is_read=False)
            raise _Stop
        self.waits_for_continue = self._expects_continue(environ)

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > _FREE_CHUNKS and self._chunks * _LEAST_CHUNK_BYTES > len(self._body):
            self._refuse(400, f"the chunks of the body have less than {_LEAST_CHUNK_BYTES} bytes: send larger ones")

    def on_body(self, piece: bytes) -> None:
        self.waits_for_continue = False
        if not self._body:
            self._body = piece
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += piece
        if len(self._body) > self._rules.max_body_bytes:
            self._deliver(is_read=False)  # the application refuses what is too large, read or not
            raise _Stop

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # the parser takes the body for another protocol: `_continue_without_upgrade`
        self._deliver(is_read=True)

    def _deliver(self, *, is_read: bool) -> None:
        request = self._request
        assert request is not None
        request.is_read = is_read
        request.environ["wsgi.input"] = io.BytesIO(self._body)
        if is_read and request.environ.pop("HTTP_TRANSFER_ENCODING", None):
            request.environ["CONTENT_LENGTH"] = str(len(self._body))
        self.ready.append(request)
        if not (is_read and request.keep_alive):
            self._end()
        self._begin()
        self.stage = Stage.NOTHING

    def _continue_without_upgrade(self, rest: memoryview) -> None:
        """What asks for another protocol is answered in this one, as if it had not asked (RFC 9110, 7.8)."""
        assert self._request is not None
        environ = self._request.environ
        chunked = "HTTP_TRANSFER_ENCODING" in environ
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {environ.get('CONTENT_LENGTH') or 0}"
        self._parser = httptools.HttpRequestParser(self)
        self._only_framing = True
        self.feed(memoryview(f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode() + rest))

    def _environ(self) -> Environ:
        method, version = self._parser.get_method().decode(), self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(505, f"HTTP/{version} is not spoken here: use HTTP/1.1")
        if method == "CONNECT":
            self._refuse(501, "this is not a proxy: CONNECT is not done here")
        target = self._target.partition(b"#")[0]
        path, _, query = _origin_form(target).partition(b"?")
        environ: Environ = {
            **self._base,
            "REQUEST_METHOD": method,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query.decode("latin-1"),
            "SERVER_PROTOCOL": f"HTTP/{version}",
        }
        self._add_headers(environ)
        encoding = environ.get("HTTP_TRANSFER_ENCODING")
        if encoding is not None and encoding.lower() != "chunked":
            self._refuse(501, "this transfer encoding is not known here: send chunks, or a Content-Length")
        if encoding is not None and version == "1.0":
            self._refuse(400, "HTTP/1.0 has no transfer encodings: send a Content-Length")
        forwarded = environ.get("HTTP_X_FORWARDED_PROTO")
        if forwarded == "https" and self._rules.is_trusted_proxy(environ["REMOTE_ADDR"]):
            environ["wsgi.url_scheme"] = forwarded
        return environ

    def _add_headers(self, environ: Environ) -> None:
        for name, value in self._headers:
            key, text = _environ_key(name), value.strip(b" \t").decode("latin-1")
            if key is None:
                continue
            if key not in environ:
                environ[key] = text
            elif key in _ONLY_ONCE:
                self._refuse(400, f"{name.decode()} is there twice: send it once")
            else:
                environ[key] += f",{text}"

    def _expects_continue(self, environ: Environ) -> bool:
        expectation = environ.get("HTTP_EXPECT")
        if expectation is None or environ["SERVER_PROTOCOL"] == "HTTP/1.0":
            return False
        if expectation.lower() != "100-continue":
            self._refuse(417, "Expect may say 100-continue only: correct it, or leave it out")
        return True


def _origin_form(target: bytes) -> bytes:
    """The path and query of what may be a whole URL (RFC 9112, 3.2.2)."""
    if target.startswith(b"/") or b"://" not in target:
        return target
    return b"/" + target.partition(b"://")[2].partition(b"/")[2]


@lru_cache(maxsize=512)
def _environ_key(name: bytes) -> str | None:
    """``None`` for a header that an environ could not tell from another: X_Auth_Token from X-Auth-Token."""
    if b"_" in name:
        return None
    key = name.decode("ascii").upper().replace("-", "_")
    return key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """``closes``: the connection ends with it."""

    data: bytes
    closes: bool


def answer_of(app: WsgiApp, request: HttpRequest, *, closes: bool) -> HttpAnswer:
    """Calls the application, whose answer is whole when this returns."""
    status = ""
    headers: list[tuple[str, str]] = []
    pieces: list[bytes] = []

    def start_response(given: str, fields: list[tuple[str, str]], _exc_info: Any = None) -> Callable[[bytes], None]:
        nonlocal status, headers
        status, headers = given, fields
        return pieces.append

    try:
        result = app(request.environ, start_response)
        try:
            pieces.extend(result)
        finally:
            getattr(result, "close", lambda: None)()
        return _written(status, headers, b"".join(pieces), request.environ["REQUEST_METHOD"], closes=closes)
    except Exception as error:
        request_ids = [value for name, value in headers if name == REQUEST_ID_HEADER]
        body = failed(request.environ, error, *request_ids[:1])
        return _error(500, body, *[(REQUEST_ID_HEADER, value) for value in request_ids])


def error_answer(status: int, message: str, *headers: tuple[str, str]) -> HttpAnswer:
    """What is answered without the application; it ends the connection."""
    body = msgspec.json.encode(error_body(status, HTTPStatus(status).phrase, message))
    return _error(status, body, *headers)


def _error(status: int, body: bytes, *headers: tuple[str, str]) -> HttpAnswer:
    fields = [("Content-Type", "application/json"), *headers]
    return _written(f"{status} {HTTPStatus(status).phrase}", fields, body, "", closes=True)


def _written(status: str, headers: Iterable[tuple[str, str]], body: bytes, method: str, *, closes: bool) -> HttpAnswer:
    lines = [
        f"HTTP/1.1 {status}",
        f"Date: {_date(int(time.time()))}",
        f"Connection: {'close' if closes else 'keep-alive'}",
    ]
    lines += [f"{name}: {value}" for name, value in headers if name.lower() != "content-length" or method == "HEAD"]
    if status[:3] not in ("204", "304") and method != "HEAD":
        lines.append(f"Content-Length: {len(body)}")
    else:
        body = b""
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of the answer has a line end")
    return HttpAnswer("\r\n".join([*lines, "", ""]).encode("latin-1") + body, closes)


@lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
