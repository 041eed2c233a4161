# SPDX-License-Identifier: Apache-2.0
"""The common part of the producer's functional tests."""

import time
import uuid
from collections import Counter, namedtuple
from typing import Any

from oslotest import base

from monasca_common.kafka import open_consumer, open_producer
from monasca_common.kafka.message import MESSAGE_ID_HEADER, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

SECONDS = 90
BUSY_SECONDS = 30.0  # extra time that a busy machine may need beyond the guaranteed time


# a record in the log
Logged = namedtuple("Logged", "partition offset message_id value")


class ProducerCase(Waiting, base.BaseTestCase):
    """Base class of tests with a real broker, which all tests of a process share; each test has its own topics."""

    nodes = 1
    driver = "kafka"
    cluster_settings: dict[str, Any] = {"proxied": True}  # noqa: RUF012  # oslotest's style; the value is never changed

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(self.nodes, **self.cluster_settings))
        self.cluster = self.fixture.cluster

    def connection(self, user="admin", **changes):
        options = {**self.cluster.client_options(user), **changes}
        return ConnectionSettings(options.pop("bootstrap.servers"), driver=self.driver, security=options)

    def producer(self, *, user="admin", connection=None, **changes):
        connection = connection or self.connection(user)
        settings = ProducerSettings(connection, **{"linger_ms": 5, "compression": "none", **changes})
        producer = open_producer(settings)
        self.addCleanup(producer.close, 0.5)
        return producer

    def consumer(self, topic, *, partitions=None, group=None, user="admin", **changes):
        group = group or f"group-{uuid.uuid4().hex[:12]}"
        settings = ConsumerSettings(self.connection(user), (topic,), group, **changes)
        consumer = open_consumer(settings, partitions=partitions)
        self.addCleanup(consumer.close, 1.0)
        return consumer

    def read(self, topic, partitions=1):
        """Return id -> value for a reader of all partitions that reads each message id once."""
        chosen = [TopicPartition(topic, number) for number in range(partitions)]
        messages = {}
        with self.consumer(topic, partitions=chosen) as reader:
            ends = reader.seek_to_end()
            reader.seek_to_beginning()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while any((reader.position(tp) or 0) < end for tp, end in ends.items()):
                self.assertLess(time.monotonic(), deadline, "the reader does not reach the end of the log")
                batch = reader.poll(timeout=0.2)
                self.assertEqual((), batch.errors)
                for message in batch:
                    messages.setdefault(message.message_id, message.value)
        return messages

    def log(self, topic, partitions=1):
        """Return every record of the topic, committed or not."""
        return [
            Logged(each.partition(), each.offset(), dict(each.headers() or ()).get(MESSAGE_ID_HEADER), each.value())
            for each in read_topic(self.cluster, topic, partitions, committed=False)
        ]


def doubled(records):
    """Return the number of records in the log beyond the first record of each id."""
    return sum(Counter(record.message_id for record in records).values()) - len({r.message_id for r in records})
