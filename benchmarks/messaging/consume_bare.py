# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's ``consume(1000)``: reads value, offset and partition, and does not commit."""

from __future__ import annotations

from confluent_kafka import Consumer

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import BATCH, consumer_options, versions


def run(job: Job) -> Figures:
    consumer = Consumer(consumer_options(job))
    consumer.subscribe([job.topic])
    first = 0
    while not first:
        first = len(consumer.consume(1, 1.0))
    watch = Stopwatch()
    count = first
    while count < job.messages:
        # At the end of the log, it waits for the whole second.
        messages = consumer.consume(min(BATCH, job.messages - count), 1.0)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            message.value()
            message.offset()
            message.partition()
        count += len(messages)
    watch.stop()
    read_up_to = sum(position.offset for position in consumer.position(consumer.assignment()))
    consumer.close()
    return Figures(count - first, watch.seconds, watch.cpu_seconds, next_offsets=read_up_to, versions=versions())


if __name__ == "__main__":
    main(run)
