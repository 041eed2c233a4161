# SPDX-License-Identifier: Apache-2.0
"""This package's ``poll`` loop: reads values and offsets, tracks handled messages, and commits once per second."""

from __future__ import annotations

import time

from benchmarks import ours
from benchmarks.job import Figures, Job, Reading
from benchmarks.librdkafka import BATCH
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

        reading, is_done, committed_at = Reading(job), False, time.monotonic()
        while not is_done:
            batch = consumer.poll(BATCH if reading.count else 1)
            handle(batch)
            is_done = reading.add(len(batch))
            if time.monotonic() - committed_at > _COMMIT_SECONDS or tracker.full():
                commit()
                committed_at = time.monotonic()
        commit()
        read_up_to = sum(consumer.position(partition) or 0 for partition in consumer.assignment())
    return reading.figures(read_up_to)
