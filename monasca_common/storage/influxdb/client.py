# SPDX-License-Identifier: Apache-2.0
"""The requests to InfluxDB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlencode

from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.http_client import DatabaseClient, DatabaseServer, HttpAnswer, one_line, refused, server_url

_EXAMPLE = "influxdb://user:password@host:8086/monasca (influxdb+https:// for TLS)"
_QUERY_NAMES = {"retention_policy", "ca_file"}
_ERROR = re.compile(r'\A\s*\{\s*"error"\s*:\s*"')
_FAULTS_OF_ROWS = ("partial write", "unable to parse")
# Limits that an operator can raise. The rows are valid, so they must not become dead letters.
_FAULT_OF_THE_DATABASE = "partial write: max-"


@dataclass(frozen=True, slots=True)
class Address(DatabaseServer):
    product: ClassVar[str] = "InfluxDB"
    scheme: ClassVar[str] = "influxdb"
    old_option: ClassVar[str] = " ([influxdb] ssl = true in an old file)"

    database: str
    retention_policy: str | None = None
    ca_file: str | None = None


def address(connection: str) -> Address:
    """Return the address in a SQLAlchemy URL. Raises `ConfigurationError`, which does not quote the URL."""
    url = server_url(connection, Address.scheme, _QUERY_NAMES, _EXAMPLE)
    if not url.host or not url.database:
        raise refused("lacks a host or a database", _EXAMPLE)
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    tls = url.drivername != Address.scheme
    return Address(url.host, url.port or 8086, tls, url.username, url.password, url.database, **options)


class InfluxClient:
    """An InfluxDB client, not thread-safe. It connects at its first request."""

    def __init__(self, where: Address, *, timeout_seconds: float) -> None:
        self._where = where
        self._http = DatabaseClient(where, timeout_seconds=timeout_seconds, ca_file=where.ca_file)
        parameters = {"db": where.database, "precision": "ms"}
        if where.retention_policy:
            parameters["rp"] = where.retention_policy
        self._write_path = f"/write?{urlencode(parameters)}"

    def write(self, lines: Sequence[bytes]) -> str | None:
        """Write lines; without lines, test the connection. Return the reason if InfluxDB refuses some of the lines
        (others may be stored), or ``None``. Raises `StorageUnavailable`."""
        answer = self._post(self._write_path, b"\n".join(lines), "text/plain; charset=utf-8")
        status = answer.status
        if 200 <= status < 300:
            return None
        reason = _reason(answer.body)
        is_full = reason.startswith(_FAULT_OF_THE_DATABASE)
        if status == 400 and reason.startswith(_FAULTS_OF_ROWS) and not is_full:
            return reason
        remedy = "; raise that limit in its configuration, or remove series" if is_full else _remedy(status)
        raise StorageUnavailable(f"{self._where.shown} responds with {status} to a write: {reason}{remedy}")

    def create_database(self) -> None:
        """Create the database if it does not exist. Raises `StorageUnavailable`."""
        name = self._where.database.replace("\\", "\\\\").replace('"', '\\"')
        query = urlencode({"q": f'CREATE DATABASE "{name}"'}).encode()
        answer = self._post("/query", query, "application/x-www-form-urlencoded")
        if answer.status != 200 or b'"error"' in answer.body:
            reason = _reason(answer.body)
            raise StorageUnavailable(f"{self._where.shown} responds with {answer.status} to CREATE DATABASE: {reason}")

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, body: bytes, content_type: str) -> HttpAnswer:
        return self._http.request("POST", path, body, {"Content-Type": content_type})


def _reason(answer: bytes) -> str:
    # The response is not parsed as JSON, because it quotes every line that could not be parsed, and may be truncated.
    return one_line(_ERROR.sub("", answer.decode(errors="replace")))


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "; correct user and password in connection in group [database], or grant the user WRITE"
    if status == 404:
        return "; create the database with `monasca-common db upgrade`"
    if status == 413:
        return "; raise max-body-size in its configuration to 25 MB, its default"
    return ""
