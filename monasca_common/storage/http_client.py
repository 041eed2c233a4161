# SPDX-License-Identifier: Apache-2.0
"""Requests to databases with an HTTP interface, over one persistent connection."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from typing import ClassVar

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.runtime.send_deadline import SendDeadline
from monasca_common.storage.errors import StorageUnavailable, TooMuchAtOnce
from monasca_common.storage.refusal import find_refused

_MAX_ANSWER_BYTES = 65_536
_MAX_REASON_CHARACTERS = 300
_MAX_REQUEST_ROWS = 10_000
_MAX_REQUEST_BYTES = 8 * 1024 * 1024  # by default, InfluxDB accepts 25 MB, and Mimir accepts 100 MB


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """``scheme``: the scheme of its URLs, with ``+https`` for TLS. ``old_option``: the TLS option in old files."""

    product: ClassVar[str]
    scheme: ClassVar[str]
    old_option: ClassVar[str] = ""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None = field(repr=False)

    @property
    def shown(self) -> str:
        return f"{self.product} at {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Message
    body: bytes


def server_url(connection: str, scheme: str, parameters: Collection[str], example: str) -> URL:
    """Parse a SQLAlchemy URL of a server. Raises `ConfigurationError`, which does not quote the URL."""
    try:
        url = make_url(connection)
    except (ArgumentError, ValueError):
        raise refused("is not a URL", example) from None
    if "@" in (url.host or ""):
        raise refused("has an @ that is not written as %40", example)
    if url.drivername not in (scheme, f"{scheme}+https"):
        raise refused(f"begins with {url.drivername!r}", example)
    if unknown := sorted(set(url.query) - set(parameters)):
        raise refused(f"has the unknown parameter {unknown[0]!r}: use {' and '.join(sorted(parameters))}", example)
    return url


def refused(rule: str, example: str) -> ConfigurationError:
    return ConfigurationError(f"connection in group [database] {rule} (it is not shown): write {example}")


def check_credentials(where: DatabaseServer, *, insecure_allowed: bool) -> None:
    """Raise `ConfigurationError` if a password would be sent to another machine without TLS and permission."""
    if not where.password or where.tls or insecure_allowed or _is_this_machine(where.host):
        return
    raise ConfigurationError(
        f"connection in group [database] sends a password to {where.host} without TLS: write {where.scheme}+https:// "
        f"instead of {where.scheme}://{where.old_option}, or set allow_insecure_credentials = true in group "
        "[storage] where the network is trusted"
    )


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class DatabaseClient:
    """An HTTP client, not thread-safe. It connects at its first request."""

    def __init__(self, where: DatabaseServer, *, timeout_seconds: float, ca_file: str | None) -> None:
        self._where = where
        self._timeout_seconds = timeout_seconds
        self._ca_file = ca_file
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {"User-Agent": "monasca-common"}
        if where.user is not None:
            pair = base64.b64encode(f"{where.user}:{where.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        max_bytes: int = _MAX_ANSWER_BYTES,
    ) -> HttpAnswer:
        """Return the response, of which at most ``max_bytes`` are read. The request may be sent twice, so a repeat must
        be harmless. Raises `StorageUnavailable`."""
        was_open = self._connection is not None
        try:
            try:
                return self._request_once(method, path, body, headers, max_bytes)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if not was_open:
                    raise
                # The server may have closed an idle connection.
                return self._request_once(method, path, body, headers, max_bytes)
        except (OSError, http.client.HTTPException, RuntimeError) as error:  # RuntimeError: too many threads
            kind = TooMuchAtOnce if isinstance(error, TimeoutError) else StorageUnavailable
            raise kind(f"{self._where.shown} does not respond: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], max_bytes: int
    ) -> HttpAnswer:
        connection = self._connection = self._connection or self._new_connection()
        with SendDeadline(self._timeout_seconds) as deadline:
            try:
                if connection.sock is None:
                    connection.connect()
                deadline.watch(connection.sock)
                connection.request(method, path, body, {**self._headers, **headers})
                response = connection.getresponse()
                content = response.read(max_bytes)
                if deadline.over or (response.length and len(content) < max_bytes):
                    raise http.client.IncompleteRead(content, response.length)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if deadline.over:
                    raise TimeoutError(f"no complete response within {self._timeout_seconds:g} s") from error
                raise
            except BaseException:
                self.close()
                raise
        if not response.isclosed():  # the response is longer than max_bytes
            self.close()
        return HttpAnswer(response.status, response.headers, content)

    def _new_connection(self) -> http.client.HTTPConnection:
        where, timeout = self._where, self._timeout_seconds
        if not where.tls:
            return http.client.HTTPConnection(where.host, where.port, timeout=timeout)
        context = ssl.create_default_context(cafile=self._ca_file)
        return http.client.HTTPSConnection(where.host, where.port, timeout=timeout, context=context)


def one_line(text: str) -> str:
    """Return a server's text in one line of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[:_MAX_REASON_CHARACTERS] + "…"


def send(rows: Sequence[bytes], write: Callable[[Sequence[bytes]], str | None]) -> dict[int, str]:
    """Write encoded rows in requests, and return the reason, by position, for each row that the server refuses.

    ``write`` sends one request, and returns why the server refuses some of its rows, or ``None``. The other rows of a
    refused request are written again, although they may already be stored.
    """
    reasons: dict[int, str] = {}
    for start, stop in _requests(rows):
        reasons |= find_refused(stop, lambda first, last: write(rows[first:last]), start=start)
    return reasons


def _requests(rows: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield ranges of encoded rows that each fit into a request; a row that is too large gets a separate range."""
    start = size_bytes = 0
    for position, row in enumerate(rows):
        size_bytes += len(row) + 1
        if position > start and (size_bytes > _MAX_REQUEST_BYTES or position - start >= _MAX_REQUEST_ROWS):
            yield start, position
            start, size_bytes = position, len(row) + 1
    if start < len(rows):
        yield start, len(rows)
