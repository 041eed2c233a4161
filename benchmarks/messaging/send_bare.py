# SPDX-License-Identifier: Apache-2.0
"""Plain confluent-kafka: one counting callback for all messages, no headers, ``poll(0)`` every 1000 messages."""

from __future__ import annotations

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, produced
from benchmarks.librdkafka import producer_options
from benchmarks.payload import VALUES, values

_POLL_EVERY = 1000


def run(job: Job) -> Figures:
    producer = Producer(producer_options(job))
    delivered = 0

    def count(error: object, message: object) -> None:
        nonlocal delivered
        if error is None:
            delivered += 1

    producer.produce(job.topic, VALUES[0], on_delivery=count)
    producer.flush()
    topic, produce, poll = job.topic, producer.produce, producer.poll
    with Stopwatch() as watch:
        for number, value in enumerate(values(job.messages), 1):
            try:
                produce(topic, value, on_delivery=count)
            except BufferError:
                while len(producer) > _POLL_EVERY:
                    poll(0.01)
                produce(topic, value, on_delivery=count)
            if not number % _POLL_EVERY:
                poll(0)
        producer.flush()
    return produced(job, watch, delivered - 1, before=1)
