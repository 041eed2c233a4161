# SPDX-License-Identifier: Apache-2.0
"""This package's ``publish``: bulks with known outcome, on one or several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, produced
from benchmarks.payload import VALUES


def run(job: Job) -> Figures:
    bulk = VALUES[: job.bulk]
    with ours.producer(job) as producer, ThreadPoolExecutor(job.threads) as threads:

        def publish(bulks: int) -> int:
            return sum(producer.publish(job.topic, bulk).delivered_count for _ in range(bulks))

        publish(1)
        each = job.messages // job.bulk // job.threads
        with Stopwatch() as watch:
            delivered = sum(threads.map(publish, [each] * job.threads)) if job.threads > 1 else publish(each)
    return produced(job, watch, delivered, before=job.bulk)
