# SPDX-License-Identifier: Apache-2.0
"""The operations that the contracts share."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import Batch, Message, Record, TopicPartition
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.tests.contracts.cluster import Cluster

if TYPE_CHECKING:
    from testtools import TestCase
else:
    # The contracts are mixed into a test case of the transport's test module, and must not be collected separately.
    TestCase = object

_SLICE_SECONDS = 0.05

Error = TypeVar("Error", bound=Exception)


class Recorder(RebalanceListener):
    """Records the calls, as pairs of name and sorted partitions.

    ``starts``: the offsets that `assigned` returns. ``on_revoked``: called by `revoked`, with its arguments.
    """

    def __init__(
        self, starts: Mapping[TopicPartition, int] | None = None, on_revoked: Callable[..., object] | None = None
    ) -> None:
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self._starts, self._on_revoked = starts or {}, on_revoked

    def assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        self.events.append(("assigned", sorted(partitions)))
        return {partition: self._starts[partition] for partition in partitions if partition in self._starts}

    def revoked(self, partitions: Sequence[TopicPartition], deadline: float) -> None:
        self.events.append(("revoked", sorted(partitions)))
        if self._on_revoked is not None:
            self._on_revoked(partitions, deadline)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("lost", sorted(partitions)))

    def received(self, name: str) -> list[list[TopicPartition]]:
        return [partitions for event, partitions in self.events if event == name]


class Scenario(TestCase):  # type: ignore[misc, unused-ignore]
    """Base class of the contracts. The transport's ``setUp`` sets ``cluster``; each test has its own topic and
    group."""

    cluster: Cluster

    def setUp(self) -> None:
        super().setUp()
        self.topic = self.cluster.new_topic()
        self.group = self.cluster.name()

    def publish(self, topic: str, records: Iterable[bytes | Record], **changes: Any) -> DeliveryReport:
        """Publish with a new producer; all messages must be delivered."""
        producer = self.cluster.producer(**changes)
        report = producer.publish(topic, list(records), timeout=self.cluster.patience_seconds)
        report.raise_for_undelivered()
        producer.close()
        return report

    def fill(self, topic: str, count: int) -> None:
        """Write ``count`` messages 0, 1, … to each partition; their timestamps are 1000, 2000, …"""
        numbers = product(range(4), range(count))
        self.publish(topic, [Record(b"%d" % n, partition=part, timestamp_ms=(n + 1) * 1000) for part, n in numbers])

    def await_batches(self, consumer: KafkaConsumer, count: int) -> list[Batch]:
        """Poll until ``count`` messages were returned; errors fail the test, except temporary errors."""
        batches: list[Batch] = []
        for _ in self.attempts(lambda: f"{sum(map(len, batches))} of {count} messages arrived"):
            if sum(map(len, batches)) >= count:
                break
            batch = consumer.poll(timeout=_SLICE_SECONDS)
            self.raise_for_errors(batch)
            if batch.partitions:
                batches.append(batch)
        return batches

    def read(self, consumer: KafkaConsumer, count: int) -> list[Message]:
        return [message for batch in self.await_batches(consumer, count) for message in batch]

    def log(self, topic: str) -> list[Message]:
        """Return all messages of the topic."""
        with self.cluster.reader(topic) as reader:
            ends, begins = reader.seek_to_end(), reader.seek_to_beginning()
            return self.read(reader, sum(ends.values()) - sum(begins.values()))

    def await_error(self, consumer: KafkaConsumer, kind: type[Error]) -> Error:
        """Poll until an error of this kind is returned; any other result fails the test."""
        found: list[Error] = []
        for _ in self.attempts(lambda: f"no {kind.__name__} came"):
            batch = consumer.poll(timeout=_SLICE_SECONDS)
            found = [error for error in batch.errors if isinstance(error, kind)]
            if found:
                break
            self.raise_for_errors(batch)
        return found[0]

    def settle(self, *consumers: KafkaConsumer, until: Callable[[], bool]) -> list[Message]:
        """Poll all consumers in turn until the condition holds; return the messages."""
        messages: list[Message] = []
        for _ in self.attempts(lambda: f"they own {[sorted(consumer.assignment()) for consumer in consumers]}"):
            if until():
                break
            for consumer in consumers:
                batch = consumer.poll(timeout=_SLICE_SECONDS)
                self.raise_for_errors(batch)
                messages.extend(batch)
        return messages

    def own(self, consumer: KafkaConsumer, count: int) -> Callable[[], bool]:
        """Return the condition that the consumer owns ``count`` partitions."""
        return lambda: len(consumer.assignment()) == count

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(4)]

    def attempts(self, found: Callable[[], str]) -> Iterator[None]:
        """Iterate attempts; after ``patience_seconds``, the test fails with the text that ``found`` returns."""
        deadline = time.monotonic() + self.cluster.patience_seconds
        while time.monotonic() < deadline:
            yield
        self.fail(f"after {self.cluster.patience_seconds} s: {found()}")

    @staticmethod
    def raise_for_errors(batch: Batch) -> None:
        for error in batch.errors:
            if not isinstance(error, RetriableError):
                raise error
