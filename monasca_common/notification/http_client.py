# SPDX-License-Identifier: Apache-2.0
"""Sends one HTTP request to a checked address, without redirects or proxies, and with limits on time and bytes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.notification.addresses import AddressRules, Endpoint, IpAddress, Lookup, connect, endpoint, resolve
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.settings import NOTIFICATION_GROUP, HttpSettings
from monasca_common.runtime.send_deadline import SendDeadline

_MOST_ANSWER_BYTES = 65_536  # this size is sufficient for a search in Jira; further bytes are not read
_MOST_WAIT_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """The response of a receiver. ``body``: the beginning of the response body."""

    status: int
    body: bytes


class HttpClient:
    """Sends requests. Thread-safe. Each request has its own connection, because there are many receivers, each of which
    is rarely used. ``lookup``: resolves host names.

    Raises `ConfigurationError` if ``ca_file`` cannot be used.
    """

    def __init__(self, settings: HttpSettings, lookup: Lookup = socket.getaddrinfo) -> None:
        self._lookup = lookup
        self._rules = AddressRules(settings.allowed_networks, settings.denied_networks)
        self._tls = _tls_context(settings.ca_file)

    def post(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_seconds: float,
        *,
        is_operators: bool = False,
    ) -> ReceiverAnswer:
        """Send a JSON document, and return the response if its status indicates success.

        ``timeout_seconds``: the time-out of the whole request, including name resolution. ``is_operators``: the
        operator chose the URL, so the rules for addresses do not apply.

        Raises `SendFailed` for any other response or if there is none, and `AddressRefused`.
        """
        where, rules = endpoint(url), None if is_operators else self._rules
        own = {"Host": where.authority, "User-Agent": "monasca-common", "Connection": "close"}
        named = {**own, "Content-Type": "application/json", **headers}
        with SendDeadline(timeout_seconds) as deadline:
            addresses = resolve(where.host, where.port, rules, deadline.left(timeout_seconds), self._lookup)
            try:
                with contextlib.closing(http.client.HTTPConnection(where.host, where.port)) as connection:
                    connection.sock = self._connected(where, addresses, deadline)
                    connection.sock.settimeout(deadline.left(timeout_seconds))
                    connection.request("POST", where.target, body, named)
                    response = connection.getresponse()
                    answer = ReceiverAnswer(response.status, _beginning(response))
            except (http.client.HTTPException, OSError, ValueError) as error:
                reason = f"no response within {timeout_seconds} s" if deadline.over else _reason(error)
                raise SendFailed(f"{where.shown}: {reason}") from None  # the text of the cause contains the whole URL
        if not 200 <= answer.status < 300:
            note = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            after_seconds = _after_seconds(response.headers.get("Retry-After"))
            raise SendFailed(f"{where.shown} responded with {answer.status}{note}", after_seconds, answer.status)
        return answer

    def _connected(self, where: Endpoint, addresses: list[IpAddress], deadline: SendDeadline) -> socket.socket:
        connection = connect(addresses, where.port, deadline)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # head and body are sent separately
        is_tls = where.scheme == "https"
        return self._tls.wrap_socket(connection, server_hostname=where.host.rstrip(".")) if is_tls else connection


def _tls_context(file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=file)
    except OSError as error:
        raise ConfigurationError(
            f"ca_file in group [{NOTIFICATION_GROUP}] is {file!r}, which cannot be used ({error.strerror}): name a "
            "readable PEM file of certificate authorities"
        ) from None
    context.hostname_checks_common_name = False  # only the names in subjectAltName identify a host
    return context


def _beginning(response: http.client.HTTPResponse) -> bytes:
    """Return the beginning of the body. It may be truncated, because only the status decides the outcome.

    A buffer limits the bytes even if the receiver sends a negative chunk size, for which `read` has no limit.
    """
    found = bytearray(_MOST_ANSWER_BYTES)
    try:
        return bytes(found[: response.readinto(found)])
    except (http.client.HTTPException, OSError, ValueError):
        return b""


def _reason(error: Exception) -> str:
    """Return a reason without the URL and without text from the receiver, which is untrusted."""
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, ssl.SSLError):
        return "TLS failed: the certificate must be valid and issued for this host"
    return f"the connection failed ({type(error).__name__})"


def _after_seconds(text: str | None) -> float | None:
    """Return the delay in a Retry-After header, if it is in seconds."""
    seconds = (text or "").strip()
    return min(float(seconds), _MOST_WAIT_SECONDS) if seconds.isascii() and seconds.isdigit() else None
