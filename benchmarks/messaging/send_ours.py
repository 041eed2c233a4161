# SPDX-License-Identifier: Apache-2.0
"""This package's ``send``, which tracks every outcome, and ``flush``."""

from __future__ import annotations

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, produced
from benchmarks.payload import VALUES, values

_FLUSH_SECONDS = 60.0


def run(job: Job) -> Figures:
    with ours.producer(job) as producer:
        producer.publish(job.topic, [VALUES[0]]).raise_for_undelivered()
        topic, send = job.topic, producer.send
        with Stopwatch() as watch:
            for value in values(job.messages):
                send(topic, value)
            report = producer.flush(_FLUSH_SECONDS)
        report.raise_for_undelivered()
    return produced(job, watch, report.delivered_count, before=1)
