# SPDX-License-Identifier: Apache-2.0
"""Handle messages of one dataclass, and publish messages of another."""

from dataclasses import dataclass

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka


@dataclass
class Reading:
    place: str
    celsius: float


@dataclass
class Report:
    place: str
    fahrenheit: float


readings = kafka.load_serializer("msgspec", type=Reading)
reports = kafka.load_serializer("msgspec", type=Report)


def handle(message: kafka.Message[Reading]) -> list[tuple[str, kafka.Record]]:
    report = Report(message.value.place, message.value.celsius * 9 / 5 + 32)
    return [("reports", reports.record("reports", report))]


with MemoryKafka() as memory:
    for topic in ("readings", "reports"):
        memory.broker.create_topic(topic)
    producer, consumer = memory.producer(), memory.consumer("readings", "converter")
    producer.publish("readings", [readings.record("readings", Reading("hall", 21.5))]).raise_for_undelivered()

    memory.drain(kafka.Processor(consumer, handle, per_message=True, serializer=readings, producer=producer))
    for record in memory.broker.records("reports"):
        print(record.value)
