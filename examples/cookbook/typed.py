# SPDX-License-Identifier: Apache-2.0
"""Publish and handle dataclasses."""

from dataclasses import dataclass

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka


@dataclass
class Reading:
    place: str
    celsius: float


def handle(message: kafka.Message[Reading]) -> None:
    print(f"{message.value.place}: {message.value.celsius}")


with MemoryKafka() as memory:
    for topic in ("readings", "readings.dlq"):
        memory.broker.create_topic(topic)
    producer, consumer = memory.producer(), memory.consumer("readings", "printer")
    readings = kafka.load_serializer("msgspec", type=Reading)
    record = readings.record("readings", Reading("hall", 21.5))
    invalid = b'{"place": "attic", "celsius": "hot"}'
    producer.publish("readings", [record, invalid]).raise_for_undelivered()

    drained = memory.drain(
        kafka.Processor(
            consumer,
            handle,
            per_message=True,
            serializer=readings,
            producer=producer,
            dead_letters=kafka.DeadLetters(),
        )
    )
    print(f"dead letters: {len(drained.dead_letters)}")
