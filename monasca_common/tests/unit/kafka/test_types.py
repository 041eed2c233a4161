# SPDX-License-Identifier: Apache-2.0
"""The types that mypy infers for values: each method here is annotated, so that mypy checks it."""

from dataclasses import dataclass
from typing import Any, ClassVar, assert_type

from oslotest import base

from monasca_common.kafka import (
    DeliveryError,
    DeliveryReport,
    KafkaProducer,
    Message,
    PartitionBatch,
    Processor,
    Record,
    Serializer,
    UndeliveredError,
    load_serializer,
)
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.testing import MemoryKafka


@dataclass(frozen=True)
class Reading:
    celsius: int


class ReadingSerializer(Serializer[Reading]):
    content_type: ClassVar[str] = "text/plain"

    def dumps(self, value: Reading) -> bytes:
        return b"%d" % value.celsius

    def loads(self, value: bytes) -> Reading:
        return Reading(int(value))


class Service:
    """A service as in the documentation."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.processor = Processor(consumer, self.handle, per_message=True, serializer=ReadingSerializer())
        self.seen: list[int] = []

    def handle(self, message: Message[Reading]) -> list[tuple[str, bytes]]:
        assert_type(message.value, Reading)
        assert_type(message.key, bytes | None)
        self.seen.append(message.value.celsius)
        return [("warm", b"yes")]


def raw_message(message: Message) -> None:
    assert_type(message.value, bytes | None)


def raw_batch(batch: PartitionBatch) -> None:
    assert_type(batch.values, list[bytes | None])


def retried(producer: KafkaProducer) -> DeliveryReport:
    try:
        producer.publish("t", [b"x"]).raise_for_undelivered()
    except UndeliveredError as error:
        assert_type(error.report.failed[0].error, DeliveryError | None)
        return producer.retry(error.report)
    return producer.flush()


def readings(batch: PartitionBatch[Reading]) -> None:
    assert_type(batch.values, list[Reading])
    for message in batch:
        assert_type(message.value, Reading)


def reading_or_deletion(message: Message[Reading | None]) -> None:
    assert_type(message.value, Reading | None)


class TypesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.kafka: MemoryKafka = self.useFixture(MemoryKafka())
        self.consumer = self.kafka.consumer("readings")

    def test_a_handler_receives_the_type_of_the_serializer(self) -> None:
        serializer = ReadingSerializer()
        Processor(self.consumer, raw_message, per_message=True)
        Processor(self.consumer, raw_batch, threads=2)
        Processor(self.consumer, readings, serializer=serializer)
        Processor(self.consumer, reading_or_deletion, per_message=True, serializer=serializer)
        Processor(self.consumer, readings, serializer=load_serializer("json"))
        typed = load_serializer("msgspec", type=Reading)
        assert_type(typed.loads(b'{"celsius": 21}'), Reading)
        Processor(self.consumer, readings, serializer=typed)

    def test_a_service_as_documented_handles_its_values(self) -> None:
        with self.kafka.producer() as producer:
            producer.publish("readings", [Record(ReadingSerializer().dumps(Reading(21)))]).raise_for_undelivered()
        service = Service(self.consumer)
        (part,) = self.consumer.poll().partitions
        decoded: Any = [
            Message("readings", 0, 0, None, None, ReadingSerializer().loads(value or b""), ()) for value in part.values
        ]

        outputs = service.handle(decoded[0])

        self.assertEqual(([21], [("warm", b"yes")]), (service.seen, outputs))
