# SPDX-License-Identifier: Apache-2.0
"""`MemoryKafka`: a broker in memory for one test, with the settings that lead to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import fixtures

from monasca_common.kafka import plugins
from monasca_common.kafka.clock import Clock
from monasca_common.kafka.consumer import KafkaConsumer
from monasca_common.kafka.consuming.rebalance import RebalanceListener
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.producer import KafkaProducer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.transport.memory import MemoryBroker, install_broker, reset_brokers


class MemoryKafka(fixtures.Fixture):
    """A fresh memory broker behind ``bootstrap_servers`` while a test runs; every other one is forgotten.

    ``broker`` creates topics, looks into logs and groups, and fails on demand (`MemoryBroker.inject`).
    ``clock``: a `VirtualClock`, for a test that moves time itself.
    """

    broker: MemoryBroker

    def __init__(
        self, *, bootstrap_servers: str = "memory:9092", clock: Clock | None = None, default_partitions: int = 1
    ) -> None:
        super().__init__()
        self.bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._default_partitions = default_partitions

    def _setUp(self) -> None:
        reset_brokers()
        self.addCleanup(reset_brokers)
        self.broker = MemoryBroker(clock=self._clock, default_partitions=self._default_partitions)
        install_broker(self.bootstrap_servers, self.broker)

    def connection(self, client_id: str = "test") -> ConnectionSettings:
        return ConnectionSettings(bootstrap_servers=self.bootstrap_servers, driver="memory", client_id=client_id)

    def producer_settings(self, **changes: Any) -> ProducerSettings:
        """Settings of a producer; ``changes`` are fields of `ProducerSettings`."""
        return ProducerSettings(**{"connection": self.connection(), **changes})

    def consumer_settings(self, topic: str, group: str = "test-group", **changes: Any) -> ConsumerSettings:
        """Settings of a consumer of one topic; ``changes`` are fields of `ConsumerSettings`."""
        fields = {"connection": self.connection(), "topics": (topic,), "group_id": group, **changes}
        return ConsumerSettings(**fields)

    def producer(self, **changes: Any) -> KafkaProducer:
        """A producer of this broker, closed with the fixture."""
        producer = plugins.memory_producer(self.producer_settings(**changes))
        self.addCleanup(producer.close, 1.0)
        return producer

    def consumer(
        self,
        topic: str,
        group: str = "test-group",
        *,
        listener: RebalanceListener | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        **changes: Any,
    ) -> KafkaConsumer:
        """A consumer of this broker, closed with the fixture."""
        settings = self.consumer_settings(topic, group, **changes)
        consumer = plugins.memory_consumer(settings, listener=listener, partitions=partitions)
        self.addCleanup(consumer.close)
        return consumer
