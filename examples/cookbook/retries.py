# SPDX-License-Identifier: Apache-2.0
"""Wait while a database is unavailable; retry other errors with back-off, then dead-letter the message."""

import time

from monasca_common import kafka
from monasca_common.kafka.testing import MemoryKafka

failures: list[Exception] = [ConnectionError(), ConnectionError(), ValueError("a race"), ValueError("a race")]


def store(value: bytes | None) -> None:
    if failures:
        raise failures.pop(0)
    print(f"stored {value!r}")


def handle(message: kafka.Message) -> None:
    try:
        store(message.value)
    except ConnectionError:
        raise kafka.RetryLater(after=0.1) from None  # retried without a limit; the message never becomes a dead letter


def publish(producer: kafka.KafkaProducer, *values: bytes, patience_seconds: float = 60.0) -> None:
    """Retry with back-off until every message is delivered."""
    report, pause, deadline = producer.publish("readings", values), 0.5, time.monotonic() + patience_seconds
    while report.retriable and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 10.0)
        report = producer.retry(report)
    report.raise_for_undelivered()


with MemoryKafka() as memory:
    for topic in ("readings", "readings.dlq"):
        memory.broker.create_topic(topic)
    producer, consumer = memory.producer(), memory.consumer("readings", "writer")
    publish(producer, b"21.5")
    drained = memory.drain(
        kafka.Processor(
            consumer,
            handle,
            per_message=True,
            retry=kafka.RetryPolicy(attempts=3, backoff_seconds=0.5),
            producer=producer,
            dead_letters=kafka.DeadLetters(),
        )
    )
    print(f"dead letters: {len(drained.dead_letters)}")
