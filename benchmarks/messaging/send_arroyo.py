# SPDX-License-Identifier: Apache-2.0
"""arroyo's KafkaProducer: a future for each message, a window of 10,000 of them."""

from __future__ import annotations

import importlib.metadata
from collections import deque

from arroyo.backends.kafka import KafkaPayload, KafkaProducer
from arroyo.types import Topic

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES, values

_WINDOW = 10_000


def run(job: Job) -> Figures:
    producer = KafkaProducer(producer_options(job))
    topic = Topic(job.topic)
    producer.produce(topic, KafkaPayload(None, VALUES[0], [])).result()
    window: deque = deque()
    with Stopwatch() as watch:
        for value in values(job.messages):
            if len(window) == _WINDOW:
                window.popleft().result()
            window.append(producer.produce(topic, KafkaPayload(None, value, [])))
        for future in window:
            future.result()
    producer.close().result()
    found = {**versions(), "sentry-arroyo": importlib.metadata.version("sentry-arroyo")}
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages + 1, versions=found)


if __name__ == "__main__":
    main(run)
