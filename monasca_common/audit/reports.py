# SPDX-License-Identifier: Apache-2.0
"""The reports of the audit, as messages of their topic. A report has the counts of a tier since its previous report.

A report whose delivery is unknown is sent again with the same id, and counts once. The event time of a message is the
Kafka timestamp of its record, which is the same on all tiers. Buckets of event time do not overlap; each is identified
by its start, in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from monasca_common.audit.runs import END, Runs
from monasca_common.models.json_text import UNREADABLE

VERSION = 1

#: Producers outside the API.
PRODUCER = "producer"
#: Tiers that count their acknowledged messages, which should be in the log.
SOURCES = frozenset({PRODUCER, "api"})
#: The tier of the counter of the log.
LOG = "broker"
#: Tiers that count, by id, the messages in the log of another cluster.
COPIES = frozenset({"mirror"})
#: The tier of a mirror's copied messages. It is a reader, as are all tiers with other names, such as ``database``,
#: ``notification`` and ``spark``, which report handled offsets.
MIRRORED = "mirrored"

#: The tolerated clock error. Messages with later timestamps are ignored, because their counts could not be removed by
#: age.
AHEAD_MS = 86_400_000


class AuditCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of messages of one topic and bucket, from a source or from the counter of a log.

    A source reports the number of ``messages``; a counter reports ``offsets``, ``duplicates`` and ``log``.
    ``duplicates``: the offsets of records that repeat the message id of a record with a lower partition and offset in
    the bucket. A count without any messages reports a counter's start. ``log``: the topic's id, which differs for a
    recreated topic.
    """

    topic: str
    bucket_ms: int
    messages: Annotated[int, msgspec.Meta(ge=0, le=END - 1)] = 0
    offsets: Mapping[int, Runs] = {}
    duplicates: Mapping[int, Runs] = {}
    log: str = ""


class HandledRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Handled offsets of one partition, from ``first`` (inclusive) to ``next`` (exclusive).

    ``position``: the start offset in the reader's database; all earlier messages are handled, whether reported or not.
    """

    topic: str
    partition: int
    first: int
    next: int
    position: int | None = None


class AuditReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report. ``application``: the consumer group of a reader. ``since_ms``: the start of the first counter of a log,
    or ``None`` for a counter that continues an earlier one."""

    id: str
    tier: str
    application: str
    sent_ms: int
    bucket_seconds: int
    counts: tuple[AuditCount, ...] = ()
    handled: tuple[HandledRange, ...] = ()
    since_ms: int | None = None
    version: int = VERSION


def encode(report: AuditReport) -> bytes:
    return msgspec.json.encode(report)


def decode(value: bytes | None) -> AuditReport | None:
    """Return the report, or ``None`` if the value is not a report of this version."""
    try:
        report = msgspec.json.decode(value or b"", type=AuditReport)
    except UNREADABLE:
        return None
    return report if report.version == VERSION else None


def reads(tier: str) -> bool:
    """Return whether this tier belongs to readers."""
    return tier not in {LOG, *SOURCES, *COPIES}


def bucket_of(time_ms: int, bucket_seconds: int) -> int:
    """Return the start of the bucket that contains this time."""
    length_ms = bucket_seconds * 1000
    return time_ms // length_ms * length_ms
