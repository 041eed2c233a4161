# SPDX-License-Identifier: Apache-2.0
"""``confluent_kafka.aio`` and aiokafka: sends whose futures are awaited 10,000 at a time, and a backlog in batches."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from benchmarks.job import Figures, Job, Reading, Stopwatch, produced
from benchmarks.librdkafka import BATCH, LINGER_MS, consumer_options, producer_options
from benchmarks.payload import VALUES, values

_WINDOW = 10_000


def run(job: Job) -> Figures:
    if job.installed:
        sys.path.insert(0, job.installed)
    return asyncio.run(_read(job) if "-read-" in job.case else _send(job))


async def _send(job: Job) -> Figures:
    producer, send = await (_aiokafka_producer(job) if job.case.endswith("aiokafka") else _confluent_producer(job))
    await (await send(job.topic, VALUES[0]))
    messages = values(job.messages)
    with Stopwatch() as watch:
        while window := list(itertools.islice(messages, _WINDOW)):
            futures = [await send(job.topic, value) for value in window]
            await producer.flush()
            await asyncio.gather(*futures)
    await (producer.stop() if job.case.endswith("aiokafka") else producer.close())
    return produced(job, watch, job.messages, before=1)  # each future was awaited


async def _confluent_producer(job: Job) -> tuple[Any, Any]:
    from confluent_kafka.aio import AIOProducer

    producer = AIOProducer(producer_options(job), batch_size=BATCH, buffer_timeout=LINGER_MS / 1000)
    return producer, producer.produce


async def _aiokafka_producer(job: Job) -> tuple[Any, Any]:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found, unused-ignore]

    producer = AIOKafkaProducer(
        bootstrap_servers=job.servers,
        enable_idempotence=True,
        acks="all",
        compression_type="lz4",
        linger_ms=LINGER_MS,
        max_batch_size=1_000_000,  # as in librdkafka; the default of 16 KiB is slower
    )
    await producer.start()
    return producer, producer.send


async def _read(job: Job) -> Figures:
    is_aiokafka = job.case.endswith("aiokafka")
    if is_aiokafka:
        from aiokafka import AIOKafkaConsumer  # type: ignore[import-not-found, unused-ignore]

        consumer: Any = AIOKafkaConsumer(
            job.topic,
            bootstrap_servers=job.servers,
            group_id=job.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
    else:
        from confluent_kafka.aio import AIOConsumer

        consumer = AIOConsumer(consumer_options(job))
        await consumer.subscribe([job.topic])

    async def batch(most: int) -> int:
        if is_aiokafka:
            return sum(map(len, (await consumer.getmany(timeout_ms=1000, max_records=most)).values()))
        return len(await consumer.consume(most, 1.0))

    reading = Reading(job)
    while not reading.add(await batch(min(BATCH, reading.left) if reading.count else 1)):
        pass
    await (consumer.stop() if is_aiokafka else consumer.close())
    return reading.figures(reading.count)
