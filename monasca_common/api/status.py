# SPDX-License-Identifier: Apache-2.0
"""The health of the whole API, served at the status port by a thread of the parent process.

The parent forks workers while this thread runs, so the thread takes no lock that a worker needs: it resolves names only
once, and does not log.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from monasca_common.api.settings import ApiSettings
from monasca_common.runtime.health import ServiceHealth

_REQUEST_SECONDS = 5.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # nosec B104: used to connect, not to listen

#: gunicorn's workers by their process id.
Workers = Callable[[], Mapping[int, Any]]


class ApiStatus(ServiceHealth):
    """Requests the health of a worker over HTTP, because only workers have Kafka and database clients."""

    def __init__(self, settings: ApiSettings, workers: Workers) -> None:
        host = _LOOPBACK.get(settings.host, settings.host)
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0]
        self._family, self._address = found[0], found[4]
        self._workers = workers
        super().__init__(service="api", turns=self._worker_turns, reasons=self._failing_parts)

    def _worker_turns(self) -> dict[str, float | None]:
        return {f"worker_{pid}": _seconds_since_turn(worker) for pid, worker in dict(self._workers()).items()}

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether a worker is healthy, and its response to ``/healthcheck``."""
        connection = http.client.HTTPConnection("api", timeout=_REQUEST_SECONDS)
        try:
            connection.sock = socket.socket(self._family)
            connection.sock.settimeout(_REQUEST_SECONDS)
            connection.sock.connect(self._address)
            connection.request("GET", "/healthcheck", headers={"Connection": "close"})
            answer = connection.getresponse()
            body = msgspec.json.decode(answer.read(), type=dict[str, Any])
            healthy = answer.status == http.HTTPStatus.OK
            return healthy, {"status": f"a worker responds with {answer.status}", **body}
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            return False, {"status": f"no worker responds: {error}"}
        finally:
            connection.close()

    def _failing_parts(self) -> Iterator[str]:
        healthy, body = self.health()
        if healthy:
            return
        parts = {part: facts for part, facts in body.items() if isinstance(facts, dict) and "status" in facts}
        bad = [f"{part} is {facts['status']}" for part, facts in parts.items() if facts["status"] != "ok"]
        yield from bad or [str(body["status"])]


def _seconds_since_turn(worker: Any) -> float | None:
    """Return the seconds since the worker last reported to gunicorn, or ``None`` if the worker has ended."""
    try:
        return max(0.0, time.monotonic() - float(worker.tmp.last_update()))
    except (OSError, ValueError):
        return None
