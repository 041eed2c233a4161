# SPDX-License-Identifier: Apache-2.0
"""monasca-common 3.8.0 as it was published: it makes each message bytes, calls ``produce`` and ``poll(0)`` for it,
writes a sentence for the log of each acknowledgement, then ``flush(2)``, and returns a count. Bulks from one thread."""

from __future__ import annotations

import importlib.metadata
import sys

from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions
from benchmarks.payload import VALUES

sys.path.append(sys.path.pop(0))  # the environment's package, not the checkout's of the same name
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
        raise RuntimeError(f"{left} times a message had no answer when flush(2) returned")
    found = {**versions(), "monasca-common": importlib.metadata.version("monasca-common")}
    return Figures(bulks * BULK, watch.seconds, watch.cpu_seconds, written=(bulks + 1) * BULK, versions=found)


if __name__ == "__main__":
    main(run)
