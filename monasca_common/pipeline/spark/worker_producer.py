# SPDX-License-Identifier: Apache-2.0
"""Provides the producer of a process that computes batches: an executor's worker, or the driver."""

from __future__ import annotations

import atexit
import contextlib
import functools
import pickle

from monasca_common.audit.reporter import audited_source
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import KafkaProducer, open_producer
from monasca_common.kafka.settings import ProducerSettings

# the producer stays open until the process ends, because Spark ends a worker without notice
_OPEN = contextlib.ExitStack()
atexit.register(_OPEN.close)


@functools.lru_cache(maxsize=1)
def worker_producer(settings: bytes) -> KafkaProducer:
    """Return the producer of this worker process, which stays open until the process ends. Callers must wait for every
    message. ``settings``: the result of `portable_producer`.
    """
    read: ProducerSettings
    audit: AuditSettings | None
    read, audit, application = pickle.loads(settings)
    return _OPEN.enter_context(open_producer(_OPEN.enter_context(audited_source(read, audit, application))))


def usable(producer: KafkaProducer) -> KafkaProducer:
    """Return the producer, reopened if it had a fatal error in an earlier batch."""
    if producer.health().finished:
        producer.reopen()
    return producer


def portable_producer(settings: ProducerSettings, audit: AuditSettings | None, application: str) -> bytes:
    """Return the settings as bytes for executors. ``audit``: the audit that receives the deliveries of ``application``
    through a folder on each executor's machine, or ``None`` if audits are disabled."""
    from pyspark import cloudpickle  # settings contain read-only views, which Python's own pickle refuses

    return cloudpickle.dumps((settings, audit, application))  # type: ignore[no-any-return, no-untyped-call]
