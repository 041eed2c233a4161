# SPDX-License-Identifier: Apache-2.0
"""Writes the backlog that the consumers of a section read. This is not measured."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import envelopes, formats, payload
from benchmarks.job import Figures, Job
from benchmarks.librdkafka import PARTITIONS, produce_all
from benchmarks.topics import AVRO


def run(job: Job) -> Figures:
    if job.case in ("metrics", "formats"):
        records = envelopes.values(job.messages)
    else:
        records = ((number % PARTITIONS, value, 0) for number, value in enumerate(payload.values(job.messages)))
    produce_all(job, records)
    if job.case == "formats":
        with formats.metrics_registry() as (_, writer):
            in_avro = ((at, writer.values([text])[0], ms) for at, text, ms in envelopes.values(job.messages))
            produce_all(replace(job, topic=f"{job.topic}{AVRO}"), in_avro)
    return Figures(job.messages, seconds=0, cpu_seconds=0)
