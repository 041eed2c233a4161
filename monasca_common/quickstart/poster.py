# SPDX-License-Identifier: Apache-2.0
"""Posts bulks over HTTP until each bulk is acknowledged, with one Idempotency-Key per bulk."""

from __future__ import annotations

import http.client
import json
import math
import queue
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

_ANSWER_SECONDS = 30.0
_RETRY_SECONDS = 0.1


@dataclass(slots=True)
class PostedBulk:
    """A request and its result. ``number`` and ``time_ms`` are unique; fields ending in ``_at`` are monotonic
    seconds."""

    number: int
    time_ms: int
    path: str
    content: Any
    size: int  # rows
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    posted_at: float | None = None
    acknowledged_at: float | None = None
    stored_at: float | None = None
    attempts: int = 0


class Poster:
    """Posts with several threads. A request without a response, or with the status 429 or 503, is repeated.

    ``source``: the address of the client, by which nginx chooses a host.
    """

    def __init__(self, host: str, port: int, *, threads: int, source: str = "") -> None:
        self._address = (host, port)
        self._source = (source, 0)
        self._bulks: queue.Queue[PostedBulk | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        self._deadline = math.inf
        self.refused: list[str] = []  # statuses that are not retried
        for thread in self._threads:
            thread.start()

    def post(self, bulk: PostedBulk) -> None:
        bulk.posted_at = time.monotonic()
        self._bulks.put(bulk)

    def finish(self, seconds: float) -> None:
        """Wait until all bulks are acknowledged. After ``seconds``, no attempt begins."""
        self._deadline = time.monotonic() + seconds
        for _ in self._threads:
            self._bulks.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (bulk := self._bulks.get()) is not None:
            body, bulk.content = json.dumps(bulk.content), None  # the contents of an hour would fill the memory
            while time.monotonic() < self._deadline and not self._attempt(bulk, body):
                time.sleep(_RETRY_SECONDS)

    def _attempt(self, bulk: PostedBulk, body: str) -> bool:
        """Return whether this bulk needs no further attempt."""
        bulk.attempts += 1
        connection = http.client.HTTPConnection(*self._address, timeout=_ANSWER_SECONDS, source_address=self._source)
        try:
            headers = {"Content-Type": "application/json", "Idempotency-Key": bulk.key}
            connection.request("POST", bulk.path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if answer.status < 300:
            bulk.acknowledged_at = time.monotonic()
            return True
        if answer.status in (429, 503):
            return False
        self.refused.append(f"{answer.status} {text[:500].decode(errors='replace')}")
        return True
