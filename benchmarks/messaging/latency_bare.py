# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka: produce one message and flush, 100 times a second."""

from __future__ import annotations

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.messaging.metronome import measure


def run(job: Job) -> Figures:
    producer = Producer(producer_options(job))
    failures: list[object] = []

    def keep(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    def one(value: bytes) -> None:
        producer.produce(job.topic, value, on_delivery=keep)
        producer.flush()

    figures = measure(one, job.messages, versions())
    if failures:
        raise RuntimeError(f"not acknowledged: {failures[0]}")
    return figures


if __name__ == "__main__":
    main(run)
