# SPDX-License-Identifier: Apache-2.0
"""Resident memory of our Processor while a slow handler works off a backlog."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import versions
from monasca_common.kafka import PartitionBatch, Processor

_HANDLER_SECONDS_PER_MESSAGE = 10e-6  # 100,000 messages a second: a tenth of what the broker could give
_SAMPLE_SECONDS = 0.5
_DEFAULT_BATCH = 500


class MemoryGauge(threading.Thread):
    """Samples the resident memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples_mb: list[float] = []
        self._done = threading.Event()

    def run(self) -> None:
        page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
        while not self._done.wait(_SAMPLE_SECONDS):
            resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples_mb.append(round(resident_pages * page_mb, 1))

    def stop(self) -> None:
        self._done.set()
        self.join()


def run(job: Job) -> Figures:
    gauge = MemoryGauge()
    gauge.start()
    count = 0

    def slow(part: PartitionBatch) -> None:
        nonlocal count
        time.sleep(len(part) * _HANDLER_SECONDS_PER_MESSAGE)
        count += len(part)
        if count >= job.messages:
            processor.stop()

    with Stopwatch() as watch, ours.consumer(job, batch=_DEFAULT_BATCH) as consumer:
        processor = Processor(consumer, slow)
        report = processor.run()
    gauge.stop()
    return Figures(
        count,
        watch.seconds,
        watch.cpu_seconds,
        next_offsets=sum(report.committed.values()),
        memory_mb=gauge.samples_mb,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        versions=versions(),
    )


if __name__ == "__main__":
    main(run)
