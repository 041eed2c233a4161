# SPDX-License-Identifier: Apache-2.0
"""Topics of a benchmark's broker, and the numbers of records in their logs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.librdkafka import PARTITIONS
from monasca_common.devbroker import KafkaCluster
from monasca_common.kafka.message import TopicPartition

AVRO = ".avro"
"""The end of the name of the topic with the same envelopes in Avro."""
_SECONDS = 30.0


class Topics:
    """Creates topics. Generated names are never used twice."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)

    @contextmanager
    def new(self, name: str | None = None) -> Iterator[str]:
        """Create a topic with `PARTITIONS` partitions, and delete it afterwards."""
        name = name or f"benchmark-{next(self._numbers)}"
        self._cluster.create_topic(name, PARTITIONS)
        try:
            yield name
        finally:
            self._cluster.admin.delete_topic(name)

    def records(self, topic: str) -> int:
        """Return the number of records in the log. Producers use no transactions, so every offset is a record."""
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return sum(self._cluster.admin.end_offsets(partitions, _SECONDS).values())
