# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics that persisters store, each with its own time as Kafka's. Not measured. The job's ``case``:
"repeats" for some that come twice."""

from __future__ import annotations

from confluent_kafka import Producer

from benchmarks.envelopes import values
from benchmarks.job import Figures, Job, Stopwatch, main
from benchmarks.librdkafka import producer_options, versions


def run(job: Job) -> Figures:
    producer = Producer({**producer_options(job), "queue.buffering.max.messages": 1_000_000})
    with Stopwatch() as watch:
        for partition, value, time_ms in values(job.messages, repeats=job.case == "repeats"):
            while True:
                try:
                    producer.produce(job.topic, value, partition=partition, timestamp=time_ms)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
    return Figures(job.messages, watch.seconds, watch.cpu_seconds, written=job.messages, versions=versions())


if __name__ == "__main__":
    main(run)
