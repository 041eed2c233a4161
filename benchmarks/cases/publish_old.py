# SPDX-License-Identifier: Apache-2.0
"""What monasca-common did before: produce and ``poll(0)`` each, then ``flush(2)``, and hope. Bulks from one thread."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES

BULK = 100


class OldWrapper:
    def __init__(self, options: dict[str, object]) -> None:
        self._producer = Producer(options)
        self.delivered = 0

    def publish(self, topic: str, messages: Iterable[bytes], timeout: float = 2) -> int:
        for message in messages:
            self._producer.produce(topic, message, on_delivery=self._count)
            self._producer.poll(0)
        return self._producer.flush(timeout)

    def _count(self, error: object, message: object) -> None:
        if error is None:
            self.delivered += 1


def run(job: Job) -> Figures:
    producer = OldWrapper(producer_options(job))
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
