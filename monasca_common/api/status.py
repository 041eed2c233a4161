# SPDX-License-Identifier: Apache-2.0
"""How the whole API is, for probes at a port of its own: told by the parent of the workers, in a thread.

The parent forks workers while this thread runs, so it takes no lock that a worker could need: names are looked up once,
and nothing is logged.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from monasca_common.api.settings import ApiSettings
from monasca_common.runtime.health import ServiceHealth, liveness, readiness

_ASK_SECONDS = 5.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # nosec B104: asked, and not listened to

#: gunicorn's workers by their process id.
Workers = Callable[[], Mapping[int, Any]]


class ApiStatus:
    """Whether it is well is asked of a worker, over HTTP: clients of Kafka and databases live there alone."""

    def __init__(self, settings: ApiSettings, workers: Workers) -> None:
        host = _ANYWHERE.get(settings.host, settings.host)
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0]
        self._family, self._address = found[0], found[4]
        self._workers = workers
        self.health = ServiceHealth("api", self._asked, liveness(self._turns), readiness(self._reasons))

    def _turns(self) -> dict[str, float | None]:
        return {f"worker_{pid}": _seconds_since_turn(worker) for pid, worker in dict(self._workers()).items()}

    def _asked(self) -> tuple[bool, dict[str, Any]]:
        """What a worker answers to ``/healthcheck``."""
        connection = http.client.HTTPConnection("api", timeout=_ASK_SECONDS)
        try:
            connection.sock = socket.socket(self._family)
            connection.sock.settimeout(_ASK_SECONDS)
            connection.sock.connect(self._address)
            connection.request("GET", "/healthcheck", headers={"Connection": "close"})
            answer = connection.getresponse()
            body = msgspec.json.decode(answer.read(), type=dict[str, Any])
            is_well = answer.status == http.HTTPStatus.OK
            return is_well, {"status": f"a worker answers {answer.status}", **body}
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            return False, {"status": f"no worker answers: {error}"}
        finally:
            connection.close()

    def _reasons(self) -> Iterator[str]:
        is_well, body = self._asked()
        if is_well:
            return
        parts = {part: facts for part, facts in body.items() if isinstance(facts, dict) and "status" in facts}
        bad = [f"{part} is {facts['status']}" for part, facts in parts.items() if facts["status"] != "ok"]
        yield from bad or [str(body["status"])]


def _seconds_since_turn(worker: Any) -> float | None:
    """``None`` where it has ended."""
    try:
        return max(0.0, time.monotonic() - float(worker.tmp.last_update()))
    except (OSError, ValueError):
        return None
