# SPDX-License-Identifier: Apache-2.0
"""This package's Processor with a handler that only counts."""

from __future__ import annotations

from benchmarks import ours
from benchmarks.job import Figures, Job, Reading
from monasca_common.kafka import PartitionBatch, Processor


def run(job: Job) -> Figures:
    reading = Reading(job)

    def handle(part: PartitionBatch) -> None:
        if reading.add(len(part)):
            processor.stop()

    with ours.consumer(job) as consumer:
        processor = Processor(consumer, handle)
        report = processor.run()
    return reading.figures(sum(report.committed.values()))
