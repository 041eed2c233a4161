# SPDX-License-Identifier: Apache-2.0
"""The least that counts: ``produce`` and ``poll(0)`` for each message of a bulk, then ``flush(2)``. One thread."""

from __future__ import annotations

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES

BULK = 100


class CountingProducer:
    def __init__(self, options: dict[str, object]) -> None:
        self.delivered = 0
        self._producer = Producer(options)

    def publish(self, topic: str, messages: tuple[bytes, ...]) -> None:
        for message in messages:
            self._producer.produce(topic, message, on_delivery=self._count)
            self._producer.poll(0)
        self._producer.flush(2)

    def _count(self, error: object, message: object) -> None:
        if error is None:
            self.delivered += 1


def run(job: Job) -> Figures:
    producer = CountingProducer(producer_options(job))
    bulk = VALUES[:BULK]
    producer.publish(job.topic, bulk)
    bulks = job.messages // BULK
    with Stopwatch() as watch:
        for _ in range(bulks):
            producer.publish(job.topic, bulk)
    written = (bulks + 1) * BULK
    if producer.delivered != written:
        raise RuntimeError(f"{producer.delivered} of {written} were acknowledged")
    return Figures(bulks * BULK, watch.seconds, watch.cpu_seconds, written=written, versions=versions())


if __name__ == "__main__":
    main(run)
