# SPDX-License-Identifier: Apache-2.0
"""Options of all cases that use librdkafka, so that they differ only in the code on top of it."""

from __future__ import annotations

from collections.abc import Iterable

import confluent_kafka

from benchmarks.job import Job

PARTITIONS = 4
LINGER_MS = 50
FETCH_BACKOFF_MS = 10  # with the default of 1000, every consumer is 6 to 60 times slower
BATCH = 1000


def producer_options(job: Job) -> dict[str, object]:
    return {
        "bootstrap.servers": job.servers,
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        "linger.ms": LINGER_MS,
        "partitioner": "murmur2_random",
    }


def produce_all(job: Job, records: Iterable[tuple[int, bytes, int]]) -> None:
    """Write the input of consumers. ``records``: partition, value and time (0: now)."""
    producer = confluent_kafka.Producer({**producer_options(job), "queue.buffering.max.messages": 1_000_000})
    for partition, value, time_ms in records:
        while True:
            try:
                producer.produce(job.topic, value, partition=partition, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def consumer_options(job: Job) -> dict[str, object]:
    return {
        "bootstrap.servers": job.servers,
        "group.id": job.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
    }
