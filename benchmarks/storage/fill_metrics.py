# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics that persisters store, each with its own time as Kafka's. Not measured. The job's ``case``:
"repeats" for some that come twice."""

from __future__ import annotations

from benchmarks.envelopes import values
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import produce_all, versions


def run(job: Job) -> Figures:
    with Stopwatch() as watch:
        produce_all(job, values(job.messages, repeats=job.case == "repeats"))
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages, versions=versions())


if __name__ == "__main__":
    main(run)
