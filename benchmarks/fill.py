# SPDX-License-Identifier: Apache-2.0
"""Writes the backlog that the consumers of a section read. This is not measured."""

from __future__ import annotations

from benchmarks import envelopes, payload
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import PARTITIONS, produce_all, versions


def run(job: Job) -> Figures:
    if job.case == "metrics":
        records = envelopes.values(job.messages)
    else:
        records = ((number % PARTITIONS, value, 0) for number, value in enumerate(payload.values(job.messages)))
    with Stopwatch() as watch:
        produce_all(job, records)
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages, versions=versions())


if __name__ == "__main__":
    main(run)
