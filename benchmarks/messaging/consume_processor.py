# SPDX-License-Identifier: Apache-2.0
"""This package's Processor with a handler that only counts."""

from __future__ import annotations

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from monasca_common.kafka import PartitionBatch, Processor


class Counter:
    """Counts messages, except the first ones, and stops the processor after the last message."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._first = 0
        self._count = 0
        self.processor: Processor
        self.watch: Stopwatch

    def __call__(self, part: PartitionBatch) -> None:
        self._count += len(part)
        if not self._first:
            self._first = self._count
            self.watch = Stopwatch()
        if self._count >= self._expected:
            self.watch.stop()
            self.processor.stop()

    @property
    def timed(self) -> int:
        return self._count - self._first


def run(job: Job) -> Figures:
    counter = Counter(job.messages)
    with ours.consumer(job) as consumer:
        counter.processor = Processor(consumer, counter)
        report = counter.processor.run()
    return Figures(
        counter.timed,
        counter.watch.seconds,
        counter.watch.cpu_seconds,
        next_offsets=sum(report.committed.values()),
        versions=versions(),
    )


if __name__ == "__main__":
    main(run)
