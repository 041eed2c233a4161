# SPDX-License-Identifier: Apache-2.0
"""Writes the backlog of metrics, each with its own time as Kafka's. Not measured."""

from __future__ import annotations

from benchmarks.envelopes import values
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import produce_all, versions


def run(job: Job) -> Figures:
    with Stopwatch() as watch:
        produce_all(job, values(job.messages))
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages, versions=versions())


if __name__ == "__main__":
    main(run)
