# SPDX-License-Identifier: Apache-2.0
"""The first alarm of a system: it is ready after it has created an alarm from a posted metric.

A service that passes its health check has not yet warmed up: Spark's first batch takes longer than the ten seconds that
the public plugin waits, and so can the first token, post and query.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from monasca_common.quickstart.services import ServiceFailed
from monasca_common.tests import web

_METRIC = "warm.up"
_SECONDS = 300.0  # on a busy machine, Spark's first batch takes a minute
_LOOK_EVERY_SECONDS = 0.2

Call = Callable[[str, str, object], Any]


def client(port: int, token: str) -> Call:
    """Return a function that calls the API with method, path and body, and returns the parsed response."""

    def call(method: str, path: str, body: object = None) -> Any:
        status, _, text = web.request(port, method, f"/v2.0{path}", body, {"X-Auth-Token": token})
        if status >= 400:
            raise ServiceFailed(f"{method} {path} returned {status}: {text.decode()}")
        return json.loads(text) if text else None

    return call


def warm_up(call: Call, check: Callable[[], None], seconds: float = _SECONDS) -> float:
    """Create an alarm and delete its definition. Return the seconds from the post of the metric to the alarm.

    ``check``: raises if a service has ended. Raises `ServiceFailed` if no alarm is created.
    """
    made = call("POST", "/alarm-definitions", {"name": "warm-up", "expression": f"last({_METRIC}) > 0"})
    posted = time.monotonic()
    metric = {"name": _METRIC, "dimensions": {"host": "a"}, "timestamp": int(time.time() * 1000), "value": 1.0}
    call("POST", "/metrics", metric)
    while not call("GET", "/alarms/state-history", None)["elements"]:
        check()
        if time.monotonic() - posted > seconds:
            raise ServiceFailed(f"no alarm within {seconds:g} s after the post of its metric: see the logs")
        time.sleep(_LOOK_EVERY_SECONDS)
    call("DELETE", f"/alarm-definitions/{made['id']}", None)
    return time.monotonic() - posted
