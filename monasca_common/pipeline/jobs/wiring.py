# SPDX-License-Identifier: Apache-2.0
"""What jobs open: the outbox, with a producer of its own, and the stored offsets, with their audit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from monasca_common.audit.reporter import AuditReporter, audited
from monasca_common.kafka import open_producer
from monasca_common.pipeline.aggregate.periods import Closing, Outbox
from monasca_common.pipeline.settings import AggregateSettings, StreamSettings
from monasca_common.pipeline.source.offset_audit import TIER, OffsetAudit
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.pipeline.spark.rejected import dead_letter_topic


@contextlib.contextmanager
def open_outbox(
    settings: AggregateSettings, offset_store: OffsetStore, topic: SourceTopic, audit: AuditReporter | None
) -> Iterator[Outbox]:
    """Open the outbox. Raises `ConfigurationError` if a topic that it writes to does not exist."""
    stream = settings.stream
    topic.check_topics(settings.output_topic, dead_letter_topic(stream))
    closing = Closing(settings.specifications, settings.slack_seconds * 1000)
    with open_producer(audited(stream.producer, audit)) as producer:
        yield Outbox(offset_store, producer, settings.output_topic, settings.publisher, closing, settings.emit)


@contextlib.contextmanager
def open_audit(stream: StreamSettings) -> Iterator[AuditReporter | None]:
    """What a job's driver reports through, where audits are on. Raises `ConfigurationError`."""
    if stream.audit is None:
        yield None
        return
    with AuditReporter(stream.audit, stream.producer, TIER, stream.group) as reporter:
        yield reporter


def open_offset_store(stream: StreamSettings, audit: AuditReporter | None) -> OffsetStore:
    """The store of a job that follows a topic. Raises `ConfigurationError`, `SchemaMismatch`, `StorageUnavailable`."""
    offset_store = OffsetStore(stream.connection, audit=None if audit is None else OffsetAudit(audit))
    offset_store.check()
    return offset_store
