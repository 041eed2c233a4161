# SPDX-License-Identifier: Apache-2.0
"""The common part of the consumer's functional tests."""

import time
import uuid
from typing import Any, ClassVar

import confluent_kafka
from oslotest import base

from monasca_common.kafka import plugins
from monasca_common.kafka.message import Message, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

SECONDS = 60
BUSY_SECONDS = 30.0  # extra time that a busy machine may need beyond the guaranteed time

CLASSIC = {"session_timeout_seconds": 6.0}
EAGER = {"assignment_strategy": "range", "session_timeout_seconds": 6.0}
KIP_848 = {"group_protocol": "consumer"}
PROTOCOLS = {"classic": CLASSIC, "eager": EAGER, "kip-848": KIP_848}


class ConsumerCase(Waiting, base.BaseTestCase):
    """Base class of tests with a real broker; each test has its own topics and groups."""

    cluster_settings: ClassVar[dict[str, Any]] = {"proxied": True}

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(**self.cluster_settings))
        self.cluster = self.fixture.cluster
        self.admin = self.cluster.admin
        self.group = f"group-{uuid.uuid4().hex[:12]}"

    def settings(self, topics, **changes):
        options = dict(self.cluster.client_options(changes.pop("user", "admin")))
        servers = options.pop("bootstrap.servers")
        fields = {
            "connection": ConnectionSettings(servers, security=options),
            "topics": (topics,) if isinstance(topics, str) else tuple(topics),
            "group_id": self.group,
            "stop_timeout_seconds": 5.0,
        }
        return ConsumerSettings(**{**fields, **changes})

    def consumer(self, topics, *, listener=None, partitions=None, **changes):
        settings = self.settings(topics, **changes)
        consumer = plugins.kafka_consumer(settings, listener=listener, partitions=partitions)
        self.addCleanup(consumer.close, 1.0)
        return consumer

    def put(self, topic, count, *, partitions=1, first=0):
        """Write ``count`` values b"<first>", b"<first + 1>", … to the partitions in turn."""
        producer = confluent_kafka.Producer({**self.cluster.direct_options(), "log_level": 0})
        for number in range(first, first + count):
            producer.produce(topic, b"%d" % number, partition=number % partitions)
        self.assertEqual(0, producer.flush(SECONDS))

    def read(self, consumer, count):
        """Poll until ``count`` messages were returned; errors fail the test."""
        messages, errors = self._poll(consumer, lambda messages, errors: errors or len(messages) >= count)
        self.assertEqual([], errors)
        self.assertEqual(count, len(messages))
        return messages

    def poll_until(self, consumer, condition):
        """Poll until ``condition()`` is true; return the polled messages."""
        return self._poll(consumer, lambda _messages, _errors: condition())[0]

    def errors_until(self, consumer, condition=None):
        """Poll until ``condition()`` is true or errors occur; return the errors."""
        return self._poll(consumer, lambda _messages, errors: condition() if condition is not None else errors)[1]

    def _poll(self, consumer, is_enough):
        messages: list[Message] = []
        errors: list[Exception] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_enough(messages, errors):
            self.assertLess(time.monotonic(), deadline, f"{len(messages)} messages and {errors} were returned in time")
            batch = consumer.poll(timeout=0.05)
            messages += batch
            errors += batch.errors
        return messages, errors


def all_of(topic, partitions):
    return [TopicPartition(topic, number) for number in range(partitions)]
