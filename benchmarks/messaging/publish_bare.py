# SPDX-License-Identifier: Apache-2.0
"""Bulks over confluent-kafka with a counting callback and, except for ``publish-counting``, an id in a header of each
message."""

from __future__ import annotations

import itertools

from confluent_kafka import Producer

from benchmarks.job import Figures, Job, Stopwatch, produced
from benchmarks.librdkafka import producer_options
from benchmarks.payload import VALUES


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
        if job.case == "publish-counting":
            for record in VALUES[: job.bulk]:
                producer.produce(job.topic, record, on_delivery=bulk)
        else:
            for record in VALUES[: job.bulk]:
                header = [("message-id", b"producer%d" % next(numbers))]
                producer.produce(job.topic, record, on_delivery=bulk, headers=header)
        producer.flush()
        return bulk.delivered

    publish()
    with Stopwatch() as watch:
        delivered = sum(publish() for _ in range(job.messages // job.bulk))
    return produced(job, watch, delivered, before=job.bulk)
