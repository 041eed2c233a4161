# SPDX-License-Identifier: Apache-2.0
"""Writes what the readers read, evenly over the partitions. Not measured."""

from __future__ import annotations

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import PARTITIONS, produce_all, versions
from benchmarks.payload import values


def run(job: Job) -> Figures:
    with Stopwatch() as watch:
        produce_all(job, ((number % PARTITIONS, value, 0) for number, value in enumerate(values(job.messages))))
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages, versions=versions())


if __name__ == "__main__":
    main(run)
