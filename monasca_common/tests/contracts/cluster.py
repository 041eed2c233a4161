# SPDX-License-Identifier: Apache-2.0
"""The interface that the contract requires of every cluster under test."""

import enum
import functools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

# A request for offsets waits for the fetch in flight, by default half a second each.
_QUICK = {"fetch.wait.max.ms": "20"}

PARTITIONS = 4  # number of partitions of every topic of the contract

TestMethod = TypeVar("TestMethod", bound=Callable[[Any], None])


class Capability(enum.Enum):
    """A capability that a cluster may lack; the value describes it."""

    TOPIC_LIMITS = "reports a topic's max.message.bytes and enforces it"
    TIME_INDEX = "finds offsets by time"
    DELETE_RECORDS = "deletes records before an offset"
    TOPIC_IDS = "distinguishes a topic from a later one of the same name"
    MORE_PARTITIONS = "adds partitions to a topic that is read"
    LOST_ANSWERS = "loses responses to produce requests on demand"
    OUTAGES = "can be unavailable for a while"
    COMMITS_AMID_REBALANCE = "accepts commits of members that do not know yet that the group rebalances"
    TRANSACTIONS = "has transactions, and hides uncommitted messages"
    CONSUMER_PROTOCOL = "has the group protocol consumer (KIP-848), which Kafka has by default since 4.0"


class Cluster(ABC):
    """One transport, and test operations outside it. Closes at the end of a test everything that it opened.

    ``patience_seconds``: how long a test waits for an expected result. ``max_poll_interval_seconds``: the shortest
    interval that the cluster allows. ``consumer_changes``: fields of `ConsumerSettings` for all consumers of this run.
    """

    capabilities: frozenset[Capability]
    connection: ConnectionSettings
    patience_seconds: float = 30.0
    max_poll_interval_seconds: float = 10.0

    def __init__(self, defer: Callable[..., object], **consumer_changes: Any) -> None:
        """``defer``: the test's ``addCleanup``."""
        self._defer = defer
        self.consumer_changes: Mapping[str, Any] = consumer_changes

    @property
    def eager(self) -> bool:
        """Whether a rebalance revokes all partitions of all members."""
        return self.consumer_changes.get("assignment_strategy") in ("range", "roundrobin")

    def name(self, kind: str = "contract") -> str:
        return f"{kind}-{uuid.uuid4().hex[:12]}"

    def producer(self, **changes: Any) -> KafkaProducer:
        """Open a producer; ``changes`` are fields of `ProducerSettings`."""
        settings = ProducerSettings(**{"connection": self.connection, "linger_ms": 5, **changes})
        producer = self.open_producer(settings)
        self._defer(producer.close, 1.0)
        return producer

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        listener: RebalanceListener | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        **changes: Any,
    ) -> KafkaConsumer:
        """Open a consumer; ``changes`` are fields of `ConsumerSettings`."""
        fields: dict[str, Any] = {"connection": self.connection, "topics": (topic,), "group_id": group}
        settings = ConsumerSettings(**{**fields, "options": _QUICK, **self.consumer_changes, **changes})
        consumer = self.open_consumer(settings, listener, partitions)
        self._defer(consumer.close)
        return consumer

    def reader(self, topic: str, **changes: Any) -> KafkaConsumer:
        """Open a consumer of all partitions of a topic, without a group."""
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return self.consumer(topic, self.name("reader"), partitions=partitions, **changes)

    @abstractmethod
    def open_producer(self, settings: ProducerSettings) -> KafkaProducer: ...

    @abstractmethod
    def open_consumer(
        self,
        settings: ConsumerSettings,
        listener: RebalanceListener | None,
        partitions: Iterable[TopicPartition] | None,
    ) -> KafkaConsumer: ...

    @abstractmethod
    def new_topic(self, *, max_message_bytes: int | None = None) -> str:
        """Return a new topic with `PARTITIONS` partitions."""

    @abstractmethod
    def new_member(self, topic: str, group: str) -> Any:
        """Start a group member that owns partitions and that this process does not have to poll.

        Its ``kill()`` ends it abruptly, without leaving the group.
        """

    @abstractmethod
    def outlive_poll_interval(self, consumer: KafkaConsumer) -> None:
        """Wait until the group removes the consumer because it did not poll."""

    # Optional capabilities of a cluster.

    def recreate_topic(self, topic: str) -> None:
        raise NotImplementedError(Capability.TOPIC_IDS.value)

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        raise NotImplementedError(Capability.DELETE_RECORDS.value)

    def add_partition(self, topic: str) -> None:
        raise NotImplementedError(Capability.MORE_PARTITIONS.value)

    def lose_produce_answers(self, count: int) -> None:
        """Lose the responses to the next ``count`` produce requests, which the broker executes."""
        raise NotImplementedError(Capability.LOST_ANSWERS.value)

    def outage(self) -> AbstractContextManager[None]:
        """Return a context in which the cluster is reachable but does not respond."""
        raise NotImplementedError(Capability.OUTAGES.value)


def needs(capability: Capability, *, patience_seconds: float = 3.0) -> Callable[[TestMethod], TestMethod]:
    """Decorate a test that only some clusters can pass: on other clusters it also runs, and must fail.
    ``patience_seconds``: the longest wait on such a cluster, sufficient to fail because of the missing capability.
    """

    def decorate(test: TestMethod) -> TestMethod:
        @functools.wraps(test)
        def run(self: Any) -> None:
            if capability in self.cluster.capabilities:
                test(self)
                return
            self.cluster.patience_seconds = min(self.cluster.patience_seconds, patience_seconds)
            must_fail(test, self, f"a {type(self.cluster).__name__}", capability)

        return run  # type: ignore[return-value]

    return decorate


def must_fail(test: Callable[[Any], None], case: Any, subject: str, capability: enum.Enum) -> None:
    """Run a test that must fail because its subject lacks the capability."""
    try:
        test(case)
    except Exception as failure:
        case.expectFailure(f"lacks {capability.name}", case.fail, f"{type(failure).__name__}: {failure}")
    case.fail(f"the test passes with {subject}, which does not declare {capability.name}: declare it")
