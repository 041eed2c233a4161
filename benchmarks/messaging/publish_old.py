# SPDX-License-Identifier: Apache-2.0
"""The released monasca-common 3.8.0, with bulks from one thread. It converts each message to bytes, calls ``produce``
and ``poll(0)`` per message, formats a log line per acknowledgement, calls ``flush(2)``, and returns a count."""

from __future__ import annotations

import importlib.metadata
import sys

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES

sys.path.append(sys.path.pop(0))  # the package of the environment, not the package of this checkout with the same name
from monasca_common.confluent_kafka.producer import KafkaProducer

BULK = 100


def run(job: Job) -> Figures:
    options = producer_options(job)
    producer = KafkaProducer(options.pop("bootstrap.servers"), **options)
    bulk = list(VALUES[:BULK])
    left = producer.publish(job.topic, bulk)
    bulks = job.messages // BULK
    with Stopwatch() as watch:
        for _ in range(bulks):
            left += producer.publish(job.topic, bulk)
    if left:
        raise RuntimeError(f"flush(2) returned {left} times before all messages were acknowledged")
    found = {**versions(), "monasca-common": importlib.metadata.version("monasca-common")}
    return Figures(bulks * BULK, watch.seconds, watch.cpu_seconds, written=(bulks + 1) * BULK, versions=found)


if __name__ == "__main__":
    main(run)
