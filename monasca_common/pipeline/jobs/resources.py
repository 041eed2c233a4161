# SPDX-License-Identifier: Apache-2.0
"""Opens the audit and the offset store of a job from its settings."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from monasca_common.audit.reporter import AuditReporter
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.source.offset_audit import TIER, OffsetAudit
from monasca_common.pipeline.source.offset_store import OffsetStore


def open_audit(stream: StreamSettings) -> AbstractContextManager[AuditReporter | None]:
    """Return a context manager that opens the audit reporter of a driver, or yields ``None`` if audits are disabled.
    Entering it raises `ConfigurationError`."""
    if stream.audit is None:
        return nullcontext()
    return AuditReporter(stream.audit, stream.producer, TIER, stream.group)


def open_offset_store(stream: StreamSettings, audit: AuditReporter | None) -> OffsetStore:
    """Open the offset store of a job that follows a topic. Raises `ConfigurationError`, `SchemaMismatch`,
    `StorageUnavailable`."""
    offset_store = OffsetStore(stream.connection, audit=None if audit is None else OffsetAudit(audit))
    offset_store.check()
    return offset_store
