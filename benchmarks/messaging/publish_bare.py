# SPDX-License-Identifier: Apache-2.0
"""Bulks with known outcome over confluent-kafka: an id in a header of each message and a callback that counts."""

from __future__ import annotations

import itertools

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES

BULK = 100


class _Counter:
    __slots__ = ("delivered",)

    def __init__(self) -> None:
        self.delivered = 0

    def __call__(self, error: object, message: object) -> None:
        self.delivered += error is None


def run(job: Job) -> Figures:
    producer = Producer(producer_options(job))
    numbers = itertools.count()

    def publish() -> int:
        bulk = _Counter()
        for record in VALUES[:BULK]:
            header = [("message-id", b"producer%d" % next(numbers))]
            producer.produce(job.topic, record, on_delivery=bulk, headers=header)
        producer.flush()
        return bulk.delivered

    publish()
    with Stopwatch() as watch:
        delivered = sum(publish() for _ in range(job.messages // BULK))
    if delivered != job.messages:
        raise RuntimeError(f"{delivered} of {job.messages} were acknowledged")
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages + BULK, versions=versions())


if __name__ == "__main__":
    main(run)
