# SPDX-License-Identifier: Apache-2.0
"""Receives the webhooks of a notification service, and on request fails, is slow, or does not answer."""

import collections
import contextlib
import json
import threading

from monasca_common.tests.served import body_of, http_server, serve


class WebhookReceiver:
    """``posts``: alarm id and status of each post in order; the status is ``None`` if no answer was sent."""

    def __init__(self):
        self.posts: list[tuple[str, int | None]] = []
        self.status = 200
        self.is_silent = False
        self.slow_seconds: dict[str, float] = {}  # by alarm id, the duration of the answer to its next post
        self._over = threading.Event()
        self._server = http_server(self._answer)
        self._close = serve(self._server)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self):
        self._over.set()
        self._close()

    def alarms(self, *statuses):
        """Return how often each alarm was answered with one of these statuses."""
        return collections.Counter(alarm for alarm, status in list(self.posts) if status in statuses)

    def _answer(self, handler):
        alarm = json.loads(body_of(handler))["alarm_id"]
        if seconds := self.slow_seconds.pop(alarm, 0):
            self._over.wait(seconds)
        status = None if self.is_silent else self.status
        self.posts.append((alarm, status))
        with contextlib.suppress(ConnectionError):  # the client was killed
            if status is None:
                handler.rfile.read(1)  # until then
            else:
                handler.send_response(status)
                handler.end_headers()
