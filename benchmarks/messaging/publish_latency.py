# SPDX-License-Identifier: Apache-2.0
"""The latency of publishing one message, 100 times per second: ``publish``, or ``produce`` and ``flush`` of
confluent-kafka."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from confluent_kafka import Producer

from benchmarks import ours
from benchmarks.job import Figures, Job, Stopwatch, produced
from benchmarks.librdkafka import producer_options
from benchmarks.payload import VALUES

_APART_SECONDS = 0.01


def run(job: Job) -> Figures:
    with contextlib.ExitStack() as stack:
        publish = _bare(job) if job.case.endswith("-bare") else _ours(job, stack)
        publish()
        latencies = []
        with Stopwatch() as watch:
            due = time.perf_counter()
            for _ in range(job.messages):
                due += _APART_SECONDS
                time.sleep(max(0.0, due - time.perf_counter()))
                began = time.perf_counter()
                publish()
                latencies.append(1000 * (time.perf_counter() - began))
    hundredths = statistics.quantiles(latencies, n=100)
    return replace(produced(job, watch, job.messages, before=1), p50_ms=hundredths[49], p99_ms=hundredths[98])


def _ours(job: Job, stack: contextlib.ExitStack) -> Callable[[], None]:
    producer = stack.enter_context(ours.producer(job))
    return lambda: producer.publish(job.topic, VALUES[:1]).raise_for_undelivered()


def _bare(job: Job) -> Callable[[], None]:
    producer = Producer(producer_options(job))
    delivered = []

    def publish() -> None:
        producer.produce(job.topic, VALUES[0], on_delivery=lambda error, _: delivered.append(error))
        producer.flush()
        if delivered.pop() is not None:
            raise RuntimeError("a message was not acknowledged")

    return publish
