# SPDX-License-Identifier: Apache-2.0
"""This package's ``poll`` loop: reads values and offsets, tracks handled messages, and commits once per second."""

from __future__ import annotations

import time

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import BATCH, versions
from monasca_common.kafka.message import Batch
from monasca_common.kafka.processor.offset_tracker import OffsetTracker

_COMMIT_SECONDS = 1.0


def run(job: Job) -> Figures:
    with ours.consumer(job) as consumer:
        tracker = OffsetTracker(consumer.settings.max_uncommitted_messages)

        def handle(batch: Batch) -> None:
            if batch.errors:
                raise batch.errors[0]
            for part in batch.partitions:
                tracker.received(part)
                for _value, _offset in zip(part.values, part.offsets, strict=True):
                    pass
                tracker.done_range(part.topic_partition, part.epoch, part.offsets[0], part.next_offset)

        def commit() -> None:
            progress = tracker.committable()
            results = consumer.commit(progress)
            tracker.committed({partition: progress[partition] for partition in results if results[partition].committed})

        first = 0
        while not first:
            batch = consumer.poll(1)
            handle(batch)
            first = len(batch)
        watch = Stopwatch()
        count, committed_at = first, time.monotonic()
        while count < job.messages:
            batch = consumer.poll(BATCH)
            handle(batch)
            count += len(batch)
            if time.monotonic() - committed_at > _COMMIT_SECONDS or tracker.full():
                commit()
                committed_at = time.monotonic()
        watch.stop()
        commit()
        read_up_to = sum(consumer.position(partition) or 0 for partition in consumer.assignment())
    return Figures(count - first, watch.seconds, watch.cpu_seconds, next_offsets=read_up_to, versions=versions())


if __name__ == "__main__":
    main(run)
