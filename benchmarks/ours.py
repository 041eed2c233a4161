# SPDX-License-Identifier: Apache-2.0
"""This package's clients, created as in services, but with the options of `benchmarks.librdkafka`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from benchmarks.job import Job
from benchmarks.librdkafka import BATCH, LINGER_MS
from monasca_common.audit.reporter import AuditReporter
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import KafkaConsumer, KafkaProducer, open_consumer, open_producer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

_GRACE_SECONDS = 60.0  # one report per second


@contextlib.contextmanager
def producer(job: Job) -> Iterator[KafkaProducer]:
    """It is audited for a case ``…-audited``."""
    settings = ProducerSettings(_connection(job), linger_ms=LINGER_MS)
    with contextlib.ExitStack() as stack:
        if job.case.endswith("-audited"):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            audit = AuditSettings(folder=folder, grace_seconds=_GRACE_SECONDS)
            reporter = stack.enter_context(AuditReporter(audit, settings, "api", "benchmark"))
            settings = reporter.audited(settings)
            reporter.handled(())
            reporter.report()  # an empty report, so that its client is connected before the measured time
        yield stack.enter_context(open_producer(settings))


def _connection(job: Job) -> ConnectionSettings:
    return ConnectionSettings(job.servers, driver="confluent" if job.case.endswith("-confluent") else "kafka")


def consumer(job: Job, batch: int = BATCH) -> KafkaConsumer:
    settings = ConsumerSettings(connection=_connection(job), topics=(job.topic,), group_id=job.group, batch_size=batch)
    return open_consumer(settings)
