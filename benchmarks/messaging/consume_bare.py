# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's ``consume(1000)``: reads value, offset and partition, and does not commit."""

from __future__ import annotations

from confluent_kafka import Consumer

from benchmarks.job import Figures, Job, Reading
from benchmarks.librdkafka import BATCH, consumer_options


def run(job: Job) -> Figures:
    consumer = Consumer(consumer_options(job))
    consumer.subscribe([job.topic])
    reading, messages = Reading(job), consumer.consume(1, 1.0)
    while not reading.add(len(messages)):
        # At the end of the log, it waits for the whole second.
        messages = consumer.consume(min(BATCH, reading.left) if reading.count else 1, 1.0)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            message.value()
            message.offset()
            message.partition()
    read_up_to = sum(position.offset for position in consumer.position(consumer.assignment()))
    consumer.close()
    return reading.figures(read_up_to)
