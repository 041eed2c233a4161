# SPDX-License-Identifier: Apache-2.0
"""The base of the API's tests: an application with a broker in memory."""

import json
import threading
import uuid

from falcon import testing
from oslotest import base

from monasca_common.api.app import make_app
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.testing import MemoryKafka

NOW_MS = 1_790_000_000_123  # the time of the application's clock, in September 2026
SECONDS = 0.05  # publish time-out of tests in which Kafka does not respond


def client_of(producers, reader, settings, **parts):
    """Return a client of an application without authentication and access log."""
    settings = ApiSettings(**{"auth_strategy": "noauth", "access_log": "off", **settings})
    return testing.TestClient(make_app(settings, producers, reader, **parts))


class ApiCase(base.BaseTestCase):
    """``self.post`` and ``self.get`` send requests to an application without authentication, for tenant ``t1``."""

    settings: dict[str, object] = {}  # noqa: RUF012  # in the style of oslotest, never changed
    kafka_settings: dict[str, object] = {}  # noqa: RUF012

    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        for topic in ("metrics", "metrics.dlq", "log", "monevents"):
            self.kafka.broker.create_topic(topic, 2)
        self._producers, self._opening = {}, threading.Lock()
        self.producer = self.producer_of("metrics")
        self.client = self.new_client()

    def producer_of(self, topic):
        """Return the topic's producer, which all clients share."""
        with self._opening:
            if topic not in self._producers:
                self._producers[topic] = self.kafka.producer(**self.kafka_settings)
                self.addCleanup(self._producers[topic].close, 0.0)
            return self._producers[topic]

    def new_client(self, *, reader=None, producer=None, now=lambda: NOW_MS / 1000, limits=None, **changes):
        producers = ProducerPool((lambda _: producer) if producer else self.producer_of)
        settings = {"publish_timeout_seconds": 5.0, **self.settings, **changes}
        return client_of(producers, reader, settings, limits=limits, now=now)

    def post(self, path, body, headers=None, *, client=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "X-Project-Id": "t1", **(headers or {})}
        return (client or self.client).simulate_post(path, body=data, headers=headers)

    def records(self, topic="metrics"):
        return self.kafka.broker.records(topic)

    def values(self, topic="metrics"):
        return sorted((json.loads(record.value) for record in self.records(topic)), key=json.dumps)


def metric(name="cpu.percent", **changes):
    return {"name": name, "dimensions": {"host": "a"}, "timestamp": NOW_MS, "value": 1.5, **changes}


def uuid_7(time_ms):
    """Return a UUID of version 7 with this creation time."""
    return str(uuid.UUID(int=time_ms << 80 | 7 << 76 | 2 << 62 | 5))
