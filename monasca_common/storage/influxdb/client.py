# SPDX-License-Identifier: Apache-2.0
"""The requests to InfluxDB, over one persistent connection."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlencode

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.errors import StorageUnavailable, TooMuchAtOnce

_EXAMPLE = "influxdb://user:password@host:8086/monasca (influxdb+https:// for TLS)"
_PLAIN, _TLS = "influxdb", "influxdb+https"
_QUERY_NAMES = {"retention_policy", "ca_file"}
_MAX_ANSWER_BYTES = 65_536
_MAX_REASON_CHARACTERS = 300
_ERROR = re.compile(r'\A\s*\{\s*"error"\s*:\s*"')
_FAULTS_OF_ROWS = ("partial write", "unable to parse")
# Limits that an operator can raise. The rows are valid, so they must not become dead letters.
_FAULT_OF_THE_DATABASE = "partial write: max-"


class LinesRefused(Exception):
    """InfluxDB refused some of the lines of a request; the others may be stored."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    database: str
    tls: bool
    user: str | None
    password: str | None = field(repr=False)
    retention_policy: str | None = None
    ca_file: str | None = None

    @property
    def shown(self) -> str:
        return f"InfluxDB at {self.host}:{self.port}"


def address(connection: str) -> Address:
    """Return the address in a SQLAlchemy URL. Raises `ConfigurationError`, which does not quote the URL."""
    try:
        url = make_url(connection)
    except (ArgumentError, ValueError):
        raise _refused("is not a URL") from None
    if url.drivername not in (_PLAIN, _TLS):
        raise _refused(f"begins with {url.drivername!r}")
    if not url.host or not url.database:
        raise _refused("names no host or no database")
    if unknown := sorted(set(url.query) - _QUERY_NAMES):
        raise _refused(f"has the parameter {unknown[0]!r}: {' and '.join(sorted(_QUERY_NAMES))} are known")
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    return Address(
        url.host, url.port or 8086, url.database, url.drivername == _TLS, url.username, url.password, **options
    )


def check_credentials(where: Address, *, insecure_allowed: bool) -> None:
    """Raise `ConfigurationError` if a password would be sent to another machine without TLS and permission."""
    if not where.password or where.tls or insecure_allowed or _is_this_machine(where.host):
        return
    raise ConfigurationError(
        f"connection in group [database] sends a password to {where.host} without TLS: write {_TLS}:// instead of "
        f"{_PLAIN}:// ([influxdb] ssl = true in an old file), or set allow_insecure_credentials = true in group "
        "[storage] where the network is trusted"
    )


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _refused(rule: str) -> ConfigurationError:
    return ConfigurationError(f"connection in group [database] {rule} (it is not shown): write {_EXAMPLE}")


class InfluxClient:
    """A client for one thread at a time. It connects at its first request."""

    def __init__(self, where: Address, *, timeout_seconds: float) -> None:
        self._where = where
        self._timeout_seconds = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {"User-Agent": "monasca-common"}
        if where.user is not None:
            pair = base64.b64encode(f"{where.user}:{where.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"
        parameters = {"db": where.database, "precision": "ms"}
        if where.retention_policy:
            parameters["rp"] = where.retention_policy
        self._write_path = f"/write?{urlencode(parameters)}"

    def write(self, lines: bytes) -> None:
        """Write lines; an empty write tests the connection. Raises `LinesRefused`, `StorageUnavailable`."""
        status, answer = self._post(self._write_path, lines, "text/plain; charset=utf-8")
        if 200 <= status < 300:
            return
        reason = _reason(answer)
        is_full = reason.startswith(_FAULT_OF_THE_DATABASE)
        if status == 400 and reason.startswith(_FAULTS_OF_ROWS) and not is_full:
            raise LinesRefused(reason)
        remedy = "; raise that limit in its configuration, or remove series" if is_full else _remedy(status)
        raise StorageUnavailable(f"{self._where.shown} answers {status} to a write: {reason}{remedy}")

    def create_database(self) -> None:
        """Create the database if it does not exist. Raises `StorageUnavailable`."""
        name = self._where.database.replace("\\", "\\\\").replace('"', '\\"')
        query = urlencode({"q": f'CREATE DATABASE "{name}"'}).encode()
        status, answer = self._post("/query", query, "application/x-www-form-urlencoded")
        if status != 200 or b'"error"' in answer:
            raise StorageUnavailable(f"{self._where.shown} answers {status} to CREATE DATABASE: {_reason(answer)}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
        was_open = self._connection is not None
        try:
            return self._post_once(path, body, content_type)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            # A server closes idle connections. Sending again is safe, because lines are overwritten.
            if not was_open:
                raise self._unavailable(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error
        try:
            return self._post_once(path, body, content_type)
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from error

    def _post_once(self, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
        connection = self._connection = self._connection or self._new_connection()
        try:
            connection.request("POST", path, body, {**self._headers, "Content-Type": content_type})
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
            if not response.isclosed():  # longer than any response of InfluxDB
                self.close()
        except BaseException:
            self.close()
            raise
        return response.status, answer

    def _new_connection(self) -> http.client.HTTPConnection:
        where, timeout = self._where, self._timeout_seconds
        if not where.tls:
            return http.client.HTTPConnection(where.host, where.port, timeout=timeout)
        context = ssl.create_default_context(cafile=where.ca_file)
        return http.client.HTTPSConnection(where.host, where.port, timeout=timeout, context=context)

    def _unavailable(self, error: Exception) -> StorageUnavailable:
        kind = TooMuchAtOnce if isinstance(error, TimeoutError) else StorageUnavailable
        return kind(f"{self._where.shown} does not answer: {type(error).__name__}: {error}")


def _reason(answer: bytes) -> str:
    # No JSON parser is used, because a response quotes every line that could not be parsed, and may be truncated.
    text = _ERROR.sub("", answer.decode(errors="replace"))
    text = " ".join(text.split())
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[:_MAX_REASON_CHARACTERS] + "…"


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "; correct user and password in connection in group [database], or grant the user WRITE"
    if status == 404:
        return "; create the database with `monasca-common db upgrade`"
    if status == 413:
        return "; raise max-body-size in its configuration to 25 MB, its default"
    return ""
