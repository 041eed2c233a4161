# SPDX-License-Identifier: Apache-2.0
"""A webhook on this machine, which refuses the first attempt of an ALARM to show the retry with the same id."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from monasca_common.devbroker.supervisor import wait_until

REFUSED, ACCEPTED = 503, 200
_PATH = "/alarms"
_MOST_BYTES = 1_000_000
_READ_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ReceivedNotification:
    """The attempts with one ``id``, and the responses. ``seconds``: the time from the change to the last attempt."""

    id: str
    state: str
    attempts: int = 0
    answers: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def accepted(self) -> bool:
        return ACCEPTED in self.answers


class LocalWebhook:
    """Listens on 127.0.0.1 between `start` and `stop`. ``port``: 0 chooses a free port."""

    def __init__(self, port: int = 0) -> None:
        self._lock = threading.Lock()
        self._received: dict[str, ReceivedNotification] = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{_PATH}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="webhook", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def received(self) -> tuple[ReceivedNotification, ...]:
        """Return the notifications in the order of their first attempts."""
        with self._lock:
            return tuple(self._received.values())

    def wait_for(self, count: int, seconds: float) -> tuple[ReceivedNotification, ...]:
        """Wait at most ``seconds`` until ``count`` notifications were accepted; return all that were received."""
        wait_until(lambda: sum(each.accepted for each in self.received()) >= count, seconds)
        return self.received()

    def record(self, notification_id: str, body: dict[str, Any]) -> int:
        """Record an attempt and return the response."""
        with self._lock:
            before = self._received.get(notification_id) or ReceivedNotification(notification_id, body["state"])
            answer = REFUSED if body["state"] == "ALARM" and not before.attempts else ACCEPTED
            self._received[notification_id] = replace(
                before,
                attempts=before.attempts + 1,
                answers=(*before.answers, answer),
                seconds=round(time.time() - float(body["alarm_timestamp"]), 1),
            )
        return answer

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        webhook = self

        class WebhookHandler(http.server.BaseHTTPRequestHandler):
            timeout = _READ_SECONDS

            def do_POST(self) -> None:
                body = self.rfile.read(min(int(self.headers["Content-Length"]), _MOST_BYTES))
                self.send_response(webhook.record(self.headers["Idempotency-Key"], json.loads(body)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return WebhookHandler


def show(received: Iterable[ReceivedNotification], console: Console) -> None:
    table = Table(title="Notifications that the webhook received", title_justify="left")
    table.add_column("state", no_wrap=True)
    table.add_column("id (Idempotency-Key)", no_wrap=True)
    table.add_column("attempts", justify="right")
    table.add_column("answers", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    for each in received:
        answers = ", ".join(map(str, each.answers))
        table.add_row(each.state, each.id, str(each.attempts), answers, f"{each.seconds:.0f} s")
    console.print(table)
