# SPDX-License-Identifier: Apache-2.0
"""arroyo's StreamProcessor: a step that does nothing, and CommitOffsets once a second."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from arroyo.backends.kafka import KafkaConsumer
from arroyo.commit import ONCE_PER_SECOND
from arroyo.processing import StreamProcessor
from arroyo.processing.strategies import CommitOffsets, ProcessingStrategyFactory, RunTask
from arroyo.types import Topic

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import consumer_options, versions


class Counting(ProcessingStrategyFactory):
    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.count = 0
        self.processor: StreamProcessor
        self.watch: Stopwatch

    def create_with_partitions(self, commit: Any, partitions: Any) -> Any:
        return RunTask(self._step, CommitOffsets(commit))

    def _step(self, message: Any) -> Any:
        self.count += 1
        if self.count == 1:
            self.watch = Stopwatch()
        elif self.count == self._expected:
            self.watch.stop()
            self.processor.signal_shutdown()
        return message.payload


def run(job: Job) -> Figures:
    counting = Counting(job.messages)
    consumer = KafkaConsumer({**consumer_options(job), "auto.offset.reset": "earliest"})
    counting.processor = StreamProcessor(consumer, Topic(job.topic), counting, ONCE_PER_SECOND)
    counting.processor.run()
    found = {**versions(), "sentry-arroyo": importlib.metadata.version("sentry-arroyo")}
    return Figures(job.messages - 1, counting.watch.seconds, counting.watch.cpu_seconds, versions=found)


if __name__ == "__main__":
    main(run)
