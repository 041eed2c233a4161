# SPDX-License-Identifier: Apache-2.0
"""The released monasca-common 3.8.0, with bulks from one thread. It converts each message to bytes, calls ``produce``
and ``poll(0)`` per message, formats a log line per acknowledgement, calls ``flush(2)``, and returns a count."""

from __future__ import annotations

import sys

from benchmarks.job import Figures, Job, Stopwatch, produced
from benchmarks.librdkafka import producer_options
from benchmarks.payload import VALUES


def run(job: Job) -> Figures:
    sys.path.insert(0, job.installed)  # before this checkout, whose package has the same name
    from monasca_common.confluent_kafka.producer import KafkaProducer  # type: ignore[import-not-found, unused-ignore]

    options = producer_options(job)
    producer = KafkaProducer(options.pop("bootstrap.servers"), **options)
    bulk = list(VALUES[: job.bulk])
    left = producer.publish(job.topic, bulk)
    with Stopwatch() as watch:
        for _ in range(job.messages // job.bulk):
            left += producer.publish(job.topic, bulk)
    if left:
        raise RuntimeError(f"flush(2) returned {left} times before all messages were acknowledged")
    return produced(job, watch, job.messages, before=job.bulk)
