# SPDX-License-Identifier: Apache-2.0
"""Reads a topic to its end with a client that is not under test, without the proxy."""

import contextlib
import time

import confluent_kafka

from monasca_common.tests.waiting import PATIENCE_SECONDS


def read_topic(cluster, topic, partitions=1, *, committed=True):
    """Return every message of the topic. ``committed``: without messages of open or aborted transactions."""
    reader = confluent_kafka.Consumer(
        {
            **cluster.direct_options(),
            "group.id": "reads-a-topic",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 10,  # an empty fetch shows the end of a partition, by default after half a second
            "log_level": 0,
        }
    )
    reader.assign(
        [
            confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING)
            for number in range(partitions)
        ]
    )
    messages, ended, deadline = [], set(), time.monotonic() + PATIENCE_SECONDS
    with contextlib.closing(reader):
        while len(ended) < partitions:
            if time.monotonic() > deadline:
                raise AssertionError(f"the end of {topic} is not reached")
            for message in reader.consume(500, 0.05):
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif not error.retriable():
                    raise AssertionError(str(error))
    return messages
