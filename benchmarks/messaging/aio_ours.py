# SPDX-License-Identifier: Apache-2.0
"""Our asyncio classes: sends with outcomes and a flush, bulks of concurrent tasks, and a processor whose handler only
counts."""

from __future__ import annotations

import asyncio

from benchmarks import ours
from benchmarks.job import Figures, Job, Reading, Stopwatch, produced
from benchmarks.payload import VALUES, values
from monasca_common.kafka import KafkaConsumer, KafkaProducer, PartitionBatch, Processor
from monasca_common.kafka.aio import AsyncProcessor, AsyncProducer

_FLUSH_SECONDS = 60.0


def run(job: Job) -> Figures:
    if job.case == "aio-processor":
        with ours.consumer(job) as consumer:
            return asyncio.run(_process(job, consumer))
    with ours.producer(job) as producer:
        return asyncio.run(_produce(job, producer))


async def _produce(job: Job, sync_producer: KafkaProducer) -> Figures:
    producer = AsyncProducer(sync_producer)
    (await producer.publish(job.topic, VALUES[:1])).raise_for_undelivered()
    with Stopwatch() as watch:
        if job.case == "aio-send":
            for value in values(job.messages):
                await producer.send(job.topic, value)
            delivered = (await producer.flush(_FLUSH_SECONDS)).delivered_count
        else:
            delivered = sum(await asyncio.gather(*(_publish(producer, job) for _ in range(job.threads))))
    return produced(job, watch, delivered, before=1)


async def _publish(producer: AsyncProducer, job: Job) -> int:
    """Publish the share of one task."""
    delivered = 0
    for _ in range(job.messages // job.bulk // job.threads):
        delivered += (await producer.publish(job.topic, VALUES[: job.bulk])).delivered_count
    return delivered


async def _process(job: Job, consumer: KafkaConsumer) -> Figures:
    reading = Reading(job)
    complete = asyncio.Event()

    async def handler(part: PartitionBatch) -> None:
        if reading.add(len(part)):
            complete.set()

    processor = AsyncProcessor(Processor(consumer, handler))
    running = asyncio.create_task(processor.run())
    await complete.wait()
    await processor.stop()
    return reading.figures(sum((await running).committed.values()))
