# SPDX-License-Identifier: Apache-2.0
"""Sends one HTTP request to a checked address: no redirect, no proxy, bounded in time and in bytes."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util.ssl_match_hostname import CertificateError

from monasca_common.notification.addresses import AddressRules, Endpoint, IpAddress, Resolver, endpoint
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.send_deadline import SendDeadline
from monasca_common.notification.settings import HttpSettings, networks

_CONNECT_SECONDS = 3.0  # time limit of the connection to each address of a receiver
_MOST_ANSWER_BYTES = 65_536  # this size is sufficient for a search in Jira; further bytes are not read
_MOST_WAIT_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """The response of a receiver. ``body``: the beginning of the response body."""

    status: int
    body: bytes


class HttpClient:
    """Sends requests. Thread-safe. Each request has its own connection, because there are many receivers, each of which
    is rarely used."""

    def __init__(self, settings: HttpSettings, resolver: Resolver | None = None) -> None:
        self._settings = settings
        self._resolver = resolver or Resolver()
        self._rules = AddressRules(networks(settings.allowed_networks), networks(settings.denied_networks))

    def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_seconds: float,
        *,
        tenant: str = "",
        is_operators: bool = False,
    ) -> ReceiverAnswer:
        """Send a JSON document, and return the response if its status is a success.

        ``timeout_seconds``: the time-out of the whole request, including name resolution. ``tenant``: the tenant that
        chose the URL. ``is_operators``: the operator chose it, so the rules for addresses do not apply.

        Raises `SendFailed` for any other response or if there is none, `SendPostponed` and `AddressRefused`.
        """
        where, rules = endpoint(url), None if is_operators else self._rules
        own = {"Host": where.authority, "User-Agent": "monasca-common", "Connection": "close"}
        named = {**own, "Content-Type": "application/json", **headers}
        with SendDeadline(timeout_seconds) as deadline:
            addresses = self._resolver.addresses(where, rules, deadline.left(timeout_seconds), tenant)
            try:
                with contextlib.closing(self._connected(where, addresses, deadline)) as connection:
                    connection.request("POST", where.target, body, named, preload_content=False, decode_content=False)
                    connection.timeout = deadline.left(timeout_seconds)  # `getresponse` sets it
                    response = connection.getresponse()
                    answer = ReceiverAnswer(response.status, _beginning(response))
            except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
                reason = f"no response within {timeout_seconds} s" if deadline.over else _reason(error)
                raise SendFailed(f"{where.shown}: {reason}") from None  # the text of the cause contains the whole URL
        if not 200 <= answer.status < 300:
            note = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            after_seconds = _after_seconds(response.headers.get("Retry-After"))
            raise SendFailed(f"{where.shown} answered {answer.status}{note}", after_seconds, answer.status)
        return answer

    def _connected(self, where: Endpoint, addresses: list[IpAddress], deadline: SendDeadline) -> HTTPConnection:
        """Connect to the first address that accepts a connection; nothing is sent to other addresses."""
        for number, address in enumerate(addresses, 1):
            seconds = deadline.left(_CONNECT_SECONDS)
            connection = self._connection(where, address, seconds, deadline)
            try:
                connection.connect()
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
                connection.close()
                if number == len(addresses) or deadline.over:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        raise AssertionError("a resolved host has an address")

    def _connection(
        self, where: Endpoint, address: IpAddress, seconds: float, deadline: SendDeadline
    ) -> WatchedConnection | WatchedTlsConnection:
        facts: dict[str, Any] = {"port": where.port, "timeout": seconds, "deadline": deadline}
        if where.scheme == "http":
            return WatchedConnection(str(address), **facts)
        return WatchedTlsConnection(
            str(address),
            **facts,
            server_hostname=where.host,
            assert_hostname=where.host,
            cert_reqs="CERT_REQUIRED",
            ca_certs=self._settings.ca_file,
        )


class _Watching:
    """Watches its socket with a deadline from the start, because the deadline also limits a TLS handshake."""

    def __init__(self, *args: Any, deadline: SendDeadline, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline = deadline

    def _new_conn(self) -> Any:
        connection = super()._new_conn()  # type: ignore[misc]
        self._deadline.watch(connection)
        return connection


class WatchedConnection(_Watching, HTTPConnection):
    """A connection that is shut down at its deadline."""


class WatchedTlsConnection(_Watching, HTTPSConnection):
    """A TLS connection that is shut down at its deadline."""


def _beginning(response: urllib3.response.BaseHTTPResponse) -> bytes:
    """Return the beginning of the body. It may be truncated, because only the status decides the outcome."""
    try:
        return response.read(_MOST_ANSWER_BYTES, decode_content=False)
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError):
        return b""


def _reason(error: Exception) -> str:
    """Return a reason without the URL and without text of the receiver, which is untrusted."""
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return "the connection was refused"
    if isinstance(error, TimeoutError | urllib3.exceptions.TimeoutError):
        return "no response in time"
    if isinstance(error, ssl.SSLError | urllib3.exceptions.SSLError | CertificateError):
        return "TLS failed: the certificate must be valid and for this host"
    return f"the connection failed ({type(error).__name__})"


def _after_seconds(text: str | None) -> float | None:
    """Return the delay in a header Retry-After, which has seconds or a date."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        seconds = float(text)
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), _MOST_WAIT_SECONDS)
