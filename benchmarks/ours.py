# SPDX-License-Identifier: Apache-2.0
"""Our clients with the options of `benchmarks.librdkafka`; everything else as a service gets it."""

from __future__ import annotations

from benchmarks.job import Job
from benchmarks.librdkafka import BATCH, LINGER_MS
from monasca_common.kafka import KafkaConsumer, KafkaProducer, plugins
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings


def producer(job: Job) -> KafkaProducer:
    return plugins.kafka_producer(ProducerSettings(ConnectionSettings(job.servers), linger_ms=LINGER_MS))


def consumer(job: Job, batch: int = BATCH) -> KafkaConsumer:
    settings = ConsumerSettings(
        connection=ConnectionSettings(job.servers), topics=(job.topic,), group_id=job.group, batch_size=batch
    )
    return plugins.kafka_consumer(settings)
