# SPDX-License-Identifier: Apache-2.0
"""Writes what the readers read, evenly over the partitions. Not measured."""

from __future__ import annotations

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import PARTITIONS, producer_options, versions
from benchmarks.payload import values


def run(job: Job) -> Figures:
    producer = Producer({**producer_options(job), "queue.buffering.max.messages": 1_000_000})
    with Stopwatch() as watch:
        for number, value in enumerate(values(job.messages)):
            while True:
                try:
                    producer.produce(job.topic, value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages, versions=versions())


if __name__ == "__main__":
    main(run)
