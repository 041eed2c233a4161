# SPDX-License-Identifier: Apache-2.0
"""The requests to a receiver of remote write, and to the Prometheus API on the same server."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import cramjam

from monasca_common.models.rows import Measurement
from monasca_common.storage.errors import StorageUnavailable, TooMuchAtOnce, UnsafeReceiver
from monasca_common.storage.http_client import DatabaseClient, DatabaseServer, HttpAnswer, one_line, refused, server_url
from monasca_common.storage.prometheus.labels import selector

LOG = logging.getLogger(__name__)

_EXAMPLE = (
    "prometheus://user:password@host:9090/api/v1/write?window=1h (prometheus+https:// for TLS; tenant=header sends "
    "the tenant as X-Scope-OrgID)"
)
_PARAMETERS = {"ca_file", "tenant", "window"}
_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_MAX_API_BYTES = 16 * 1024 * 1024
_MAX_WAIT_SECONDS = 60.0
_REMEDIES = {
    401: "; correct user and password in connection in group [database]",
    404: "; start Prometheus with --web.enable-remote-write-receiver, or correct the path in connection",
}
_DURATION = re.compile(r"(?:\d+(?:ms|[ywdhms]))+|0")
_DURATION_PART = re.compile(r"(\d+)(ms|[ywdhms])")
_UNIT_SECONDS = {"y": 31_536_000, "w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
_WINDOW = re.compile(r"^ +out_of_order_time_window: *(\S+) *$", re.MULTILINE)
# Prometheus 2.42 responds with 500 to a sample that is too old.
_REFUSED_BY_TIME = re.compile("out[ -]of[ -]order|out of bounds|too[ -]old|duplicate[ -](sample|timestamp)")
_DUPLICATE = re.compile("duplicate[ -](sample|timestamp)")
# Limits that an operator can raise, and a URL without TLS: the rows are valid, so they must not become dead letters.
# Labels, whose texts a tenant chooses, follow a quotation mark or brace.
_NOT_OF_A_ROW = re.compile(r"[^'\"{]*(err-mimir-(max-series-per-|tenant-)|HTTPS (server|port))")


@dataclass(frozen=True, slots=True)
class ReceiverUrl(DatabaseServer):
    """The URL of a receiver. ``window_seconds``: how far behind the newest sample it must accept samples."""

    product: ClassVar[str] = "the receiver of remote write"
    scheme: ClassVar[str] = "prometheus"

    path: str
    window_seconds: float
    tenant_as_header: bool
    ca_file: str | None

    @property
    def api(self) -> str | None:
        """The path of Prometheus' API, or ``None`` if the URL does not end with Prometheus' remote-write path."""
        return self.path.removesuffix("/write") if self.path.endswith("/api/v1/write") else None


def address(connection: str) -> ReceiverUrl:
    """Return the address in a SQLAlchemy URL. Raises `ConfigurationError`, which does not quote the URL."""
    url = server_url(connection, ReceiverUrl.scheme, _PARAMETERS, _EXAMPLE)
    if not url.host or not url.database:
        raise refused("lacks a host or a path", _EXAMPLE)
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    window, tenant = options.get("window", "1h"), options.get("tenant", "label")
    window_seconds = _seconds(window)
    if not window_seconds:
        raise refused(f"has the parameter window={window!r}, which is not a duration above 0", _EXAMPLE)
    if tenant not in ("label", "header"):
        raise refused(f"has the parameter tenant={tenant!r}, which is neither label nor header", _EXAMPLE)
    tls, path = url.drivername != ReceiverUrl.scheme, quote(f"/{url.database}")
    port = url.port or (443 if tls else 9090)
    user, as_header = (url.username, url.password), tenant == "header"
    return ReceiverUrl(url.host, port, tls, *user, path, window_seconds, as_header, options.get("ca_file"))


def _seconds(duration: str) -> float | None:
    if not _DURATION.fullmatch(duration):
        return None
    return sum(int(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))


class Receiver:
    """A client of a remote-write receiver, not thread-safe. It connects at its first request."""

    def __init__(self, where: ReceiverUrl, *, timeout_seconds: float) -> None:
        self._where = where
        self._http = DatabaseClient(where, timeout_seconds=timeout_seconds, ca_file=where.ca_file)

    def write(self, tenant: str, samples: Sequence[bytes]) -> str | None:
        """Write a ``WriteRequest`` of encoded samples. A repeat stores no sample twice. Return the reason if the
        receiver refuses at least one sample (others may be stored), or ``None``. Raises `StorageUnavailable`.
        """
        body = bytes(cramjam.snappy.compress_raw(b"".join(samples)))
        answer = self._http.request("POST", self._where.path, body, _HEADERS | self._scope(tenant))
        if 200 <= answer.status < 300:
            return None
        reason = one_line(answer.body.decode(errors="replace"))
        is_by_time = _REFUSED_BY_TIME.search(reason) and answer.status in (400, 409, 422, 500)
        is_of_a_row = not _NOT_OF_A_ROW.match(reason)
        if is_by_time or (answer.status in (400, 422) and is_of_a_row):
            return f"{self._where.product} responds with {answer.status}: {reason}"
        raise self._unavailable(answer, f"a write: {reason}{_REMEDIES.get(answer.status, '')}")

    def has(self, labels: Mapping[str, str], row: Measurement, refusal: str) -> bool | None:
        """Return whether the receiver has a refused sample: ``True`` if with the same value, ``False`` if with another,
        or ``None`` if the sample is missing or the receiver has no such API. Raises `StorageUnavailable`."""
        query = {"query": f"{selector(labels)}[1s]", "time": f"{row.time_ms / 1000:.3f}"}
        found = self._api(f"/query?{urlencode(query)}", self._scope(row.series.tenant))
        for series in (found or {}).get("result", ()):
            for seconds, value in series["values"]:
                if series["metric"] == labels and round(seconds * 1000) == row.time_ms:
                    return repr(float(value)) == repr(row.value)
        return False if _DUPLICATE.search(refusal) else None

    def check_window(self) -> None:
        """Check that Prometheus accepts repeated samples. If a receiver does not show its configuration, log this.

        Raises `UnsafeReceiver`, `StorageUnavailable`.
        """
        flags = self._api("/status/flags", {}) or {}
        shown = self._api("/status/config", {}) if "storage.tsdb.path" in flags else None
        if shown is None:
            text = "%s does not show its configuration: it must accept samples %g s behind the newest sample"
            LOG.info(text, self._where.shown, self._where.window_seconds)
            return
        found = _WINDOW.search(shown["yaml"])
        seconds = _seconds(found[1]) if found else 0.0
        if (seconds or 0.0) < self._where.window_seconds:
            raise UnsafeReceiver(
                f"{self._where.shown} has storage.tsdb.out_of_order_time_window = {found[1] if found else '0s'}, so it "
                f"would refuse samples that are repeated after a crash: set it to at least "
                f"{self._where.window_seconds:g}s, or lower window in connection in group [database]"
            )

    def close(self) -> None:
        self._http.close()

    def _scope(self, tenant: str) -> dict[str, str]:
        return {"X-Scope-OrgID": tenant} if self._where.tenant_as_header else {}

    def _api(self, path: str, headers: Mapping[str, str]) -> Any:
        """Return the data of Prometheus' API, or ``None`` if there is no such API."""
        if self._where.api is None:
            return None
        answer = self._http.request("GET", self._where.api + path, None, headers, max_bytes=_MAX_API_BYTES)
        if answer.status == 429 or answer.status >= 500:
            raise self._unavailable(answer, f"GET {path.partition('?')[0]}")
        try:
            return json.loads(answer.body)["data"] if answer.status == 200 else None
        except (ValueError, LookupError, TypeError):
            return None

    def _unavailable(self, answer: HttpAnswer, request: str) -> StorageUnavailable:
        kind = TooMuchAtOnce if answer.status == 413 else StorageUnavailable
        error = kind(f"{self._where.shown} responds with {answer.status} to {request}")
        wait = answer.headers.get("Retry-After", "")
        if wait.isascii() and wait.isdigit():
            error.after_seconds = min(float(wait), _MAX_WAIT_SECONDS) or None  # 0 must not cause a loop without pauses
        return error
