# SPDX-License-Identifier: Apache-2.0
"""Our ``publish`` of one message, 100 times a second."""

from __future__ import annotations

from benchmarks import ours
from benchmarks.job import Figures, Job, main
from benchmarks.librdkafka import versions
from benchmarks.messaging.metronome import measure


def run(job: Job) -> Figures:
    with ours.producer(job) as producer:
        return measure(
            lambda value: producer.publish(job.topic, [value]).raise_for_undelivered(), job.messages, versions()
        )


if __name__ == "__main__":
    main(run)
