# SPDX-License-Identifier: Apache-2.0
"""Receives the webhooks of a notification service, and fails, is slow or falls silent on request."""

import collections
import contextlib
import http.server
import json
import threading

_SECONDS = 60


class WebhookReceiver:
    """``posts``: (alarm id, status) of each post, in order; the status is None where none was sent."""

    def __init__(self):
        self.posts: list[tuple[str, int | None]] = []
        self.status = 200
        self.is_silent = False
        self.slow_seconds: dict[str, float] = {}  # alarm id: how long the answer to its next post takes
        self._over = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SECONDS)

    def alarms(self, *statuses):
        """How often each alarm was answered with one of these."""
        return collections.Counter(alarm for alarm, status in list(self.posts) if status in statuses)

    def _answer(self, alarm):
        """The status; None for silence."""
        if seconds := self.slow_seconds.pop(alarm, 0):
            self._over.wait(seconds)
        status = None if self.is_silent else self.status
        self.posts.append((alarm, status))
        return status

    def _handler(receiver):  # noqa: N805 - the handler has a self of its own
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = receiver._answer(body["alarm_id"])
                with contextlib.suppress(ConnectionError):  # whoever posted is killed
                    if status is None:
                        self.rfile.read(1)  # until then
                    else:
                        self.send_response(status)
                        self.end_headers()

            def log_message(self, *_):
                pass

        return Handler
