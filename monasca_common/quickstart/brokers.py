# SPDX-License-Identifier: Apache-2.0
"""The broker of a run: a real Kafka behind a proxy, or librdkafka's in-process broker without Java."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from monasca_common.devbroker import ApiKey, Fault, KafkaCluster, KafkaProxy
from monasca_common.devbroker.errors import JavaNotFound, JavaTooOld
from monasca_common.devbroker.java import find_java

PARTITIONS = 4


class Broker(Protocol):
    kind: str
    bootstrap_servers: str
    topic_check_seconds: float  # 0: it has no topic ids

    def lose_answers(self, seconds: float) -> None:
        """Lose some acknowledgements, and delay others by ``seconds``, longer than a producer waits."""

    def answers_lost(self) -> int: ...


class RealKafka:
    kind = "kafka"
    topic_check_seconds = 60.0

    def __init__(self, cluster: KafkaCluster) -> None:
        self.bootstrap_servers = cluster.bootstrap_servers
        self._proxy: KafkaProxy = cluster.proxy

    def lose_answers(self, seconds: float) -> None:
        self._proxy.add(Fault.cut_answer(ApiKey.PRODUCE, times=3))
        self._proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=seconds, times=2))

    def answers_lost(self) -> int:
        return self._proxy.counters.answers_lost


class Mock:
    kind = "mock"
    topic_check_seconds = 0.0

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def lose_answers(self, seconds: float) -> None:
        """Do nothing: there is no proxy in front of this broker."""

    def answers_lost(self) -> int:
        return 0


def java_is_missing() -> str | None:
    """Return why a real Kafka cannot run here, with the remedy, or ``None``."""
    try:
        find_java()
    except (JavaNotFound, JavaTooOld) as error:
        return str(error)
    return None


@contextmanager
def real_kafka() -> Iterator[Broker]:
    """Start a cluster without topics, which `monasca-common init` creates."""
    with KafkaCluster(proxied=True) as cluster:
        yield RealKafka(cluster)


@contextmanager
def mock(topics: Sequence[str]) -> Iterator[Broker]:
    from monasca_common.kafka.transport.mock_broker import MockBroker

    broker = MockBroker()
    for topic in topics:
        broker.create_topic(topic)
    yield Mock(broker.bootstrap_servers)
