# SPDX-License-Identifier: Apache-2.0
"""Our clients with the options of `benchmarks.librdkafka`; everything else as a service gets it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.job import Job
from benchmarks.librdkafka import BATCH, LINGER_MS
from monasca_common.kafka import KafkaConsumer, KafkaProducer, plugins
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.monitoring.audit.reporter import AuditReporter
from monasca_common.monitoring.audit.reports import AuditCount
from monasca_common.monitoring.audit.settings import AuditSettings

AUDITED = "audited"  # a case of this name reports what it sends or reads, as a service does


def producer(job: Job, **changes: Any) -> KafkaProducer:
    """``changes``: fields of `ProducerSettings`."""
    fields = {
        "connection": ConnectionSettings(job.servers),
        "linger_ms": LINGER_MS,
        "topics_without_message_id": frozenset() if job.message_ids else frozenset({job.topic}),
    }
    return plugins.kafka_producer(ProducerSettings(**{**fields, **changes}))


def consumer(job: Job, batch: int = BATCH) -> KafkaConsumer:
    settings = ConsumerSettings(
        connection=ConnectionSettings(job.servers), topics=(job.topic,), group_id=job.group, batch_size=batch
    )
    return plugins.kafka_consumer(settings)


@contextlib.contextmanager
def audited(job: Job, tier: str) -> Iterator[AuditReporter | None]:
    """What reports for an audited case; ``None`` for every other."""
    if job.case != AUDITED:
        yield None
        return
    settings = ProducerSettings(ConnectionSettings(job.servers))
    with tempfile.TemporaryDirectory() as folder:
        audit = AuditSettings(enabled=True, report_seconds=1.0, folder=folder)
        with AuditReporter(audit, settings, tier, job.group) as reporter:
            reporter.counted([AuditCount(job.topic, 0, 1)])
            reporter.report()  # its client is at work before the clock runs
            yield reporter
