# SPDX-License-Identifier: Apache-2.0
"""A minimal server that returns the same responses: Falcon and confluent-kafka, status 204 after every message of the
request is acknowledged.

It does not validate: it splits the body into its elements, wraps each element unchanged, and reports only success.
"""

from __future__ import annotations

import os
import threading
import time

import falcon
import msgspec
from confluent_kafka import Producer

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_WAIT_SECONDS = 30.0


class _Request:
    """Counts the acknowledgements of one request."""

    __slots__ = ("done", "failed", "left")

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.failed = False
        self.done = threading.Event()

    def acknowledged(self, error: object, message: object) -> None:
        self.failed = self.failed or error is not None
        self.left -= 1
        if not self.left:
            self.done.set()


class Metrics:
    def __init__(self, options: dict[str, object], topic: str) -> None:
        self._producer = Producer(options)
        self._topic = topic
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        while True:
            self._producer.poll(0.1)

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        elements = _split(request.bounded_stream.read())
        waiting = _Request(len(elements))
        end = b',"meta":{"tenantId":"t","region":"RegionOne"},"creation_time":%d}' % time.time()
        produce, topic, acknowledged = self._producer.produce, self._topic, waiting.acknowledged
        for element in elements:
            produce(topic, b'{"metric":' + bytes(element) + end, on_delivery=acknowledged)
        if not waiting.done.wait(_WAIT_SECONDS) or waiting.failed:
            raise falcon.HTTPServiceUnavailable
        response.status = falcon.HTTP_204


def application() -> falcon.App:
    """Return the application of a gunicorn worker. Its options come from the environment."""
    options = msgspec.json.decode(os.environ["BENCHMARK_OPTIONS"], type=dict[str, object])
    app = falcon.App()
    app.add_route("/v2.0/metrics", Metrics(options, os.environ["BENCHMARK_TOPIC"]))
    return app
