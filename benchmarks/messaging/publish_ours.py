# SPDX-License-Identifier: Apache-2.0
"""Our ``publish``: bulks with known outcome."""

from __future__ import annotations

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from benchmarks.payload import VALUES

BULK = 100


def run(job: Job) -> Figures:
    bulk = VALUES[:BULK]
    with ours.producer(job) as producer:
        producer.publish(job.topic, bulk).raise_for_undelivered()
        with Stopwatch() as watch:
            delivered = sum(producer.publish(job.topic, bulk).delivered_count for _ in range(job.messages // BULK))
    if delivered != job.messages:
        raise RuntimeError(f"{delivered} of {job.messages} were acknowledged")
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages + BULK, versions=versions())


if __name__ == "__main__":
    main(run)
