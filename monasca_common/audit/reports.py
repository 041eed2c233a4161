# SPDX-License-Identifier: Apache-2.0
"""The reports of audits, as they travel in their topic: what a tier had of each topic since its last report.

A report is a delta and has an id of its own: whoever is not sure that it arrived sends it again. The event time of a
message is Kafka's timestamp of its record, because that travels with the message and is the same on all tiers. Buckets
of event time do not overlap; each is known by its beginning, in milliseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from monasca_common.audit.runs import Runs

VERSION = 1

#: Whoever sends, but for the API.
PRODUCER = "producer"
#: They count what brokers acknowledged to them: what should be in the log.
SOURCES = frozenset({PRODUCER, "api"})
#: It reads the log itself, and counts what is in it.
LOG = "broker"
#: They count, by id, what arrived in the log of another cluster.
COPIES = frozenset({"mirror"})
#: A mirror: what it has copied from this log. It is a reader, as a tier of any other name is: ``database``,
#: ``notification`` and ``spark`` report which offsets they have handled, too.
MIRRORED = "mirrored"

#: A clock may be wrong by so much. Messages of later times are left out: they would never be old enough to forget.
AHEAD_MS = 86_400_000


class AuditCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a source, or a counter of a log, had of one topic in one bucket.

    ``delay_ms``: of all its messages in sum, from their timestamps to the moment at which they were counted.
    ``offsets``, ``duplicates``: of a counter alone, by partition; the second are those of the first whose message id
    another record of the same bucket has, at a lower place. Then ``messages`` says how many ``bytes`` and delays are
    of: what is reported again after a restart is in ``offsets`` alone. Without either it says that it has begun.
    ``log``: the topic's id, of a counter that knows it: another one is another log under the same name.
    """

    topic: str
    bucket_ms: int
    messages: int = 0
    bytes: int = 0
    delay_ms: int = 0
    max_delay_ms: int = 0
    offsets: Mapping[int, Runs] = {}
    duplicates: Mapping[int, Runs] = {}
    log: str = ""


class HandledRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Offsets of one partition that a reader has handled: from ``first`` to just before ``next``.

    ``first_ms``: the timestamp of the first message among them. ``delay_ms``: its age when it was handled.
    ``position``: where the reader's own database said that it starts: all before is handled, whether reported or not.
    """

    topic: str
    partition: int
    first: int
    next: int
    first_ms: int | None = None
    delay_ms: int = 0
    position: int | None = None


class AuditReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """``application``: the consumer group of a reader. ``instance``: one process of it. ``since_ms``: a counter had
    nothing from before; ``None``: it goes on where one before it ended."""

    id: str
    tier: str
    application: str
    host: str
    instance: str
    sent_ms: int
    bucket_seconds: int
    counts: tuple[AuditCount, ...] = ()
    handled: tuple[HandledRange, ...] = ()
    since_ms: int | None = None
    version: int = VERSION


def encode(report: AuditReport) -> bytes:
    return msgspec.json.encode(report)


def decode(value: bytes | None) -> AuditReport | None:
    """``None``: it is not a report of this version, whoever has written it."""
    try:
        report = msgspec.json.decode(value or b"", type=AuditReport)
    except msgspec.DecodeError:
        return None
    return report if report.version == VERSION else None


def by_topic(report: AuditReport) -> Iterator[tuple[str, AuditReport]]:
    """What it says of each topic, as reports with its id."""
    counts, handled = defaultdict[str, list[AuditCount]](list), defaultdict[str, list[HandledRange]](list)
    for count in report.counts:
        counts[count.topic].append(count)
    for each in report.handled:
        handled[each.topic].append(each)
    for topic in counts.keys() | handled.keys():
        yield (
            topic,
            msgspec.structs.replace(report, counts=tuple(counts.get(topic, ())), handled=tuple(handled.get(topic, ()))),
        )


def reads(tier: str) -> bool:
    """Whether it is the tier of a reader."""
    return tier not in {LOG, *SOURCES, *COPIES}


def bucket_of(time_ms: int, bucket_seconds: int) -> int:
    """The beginning of the bucket in which this moment is."""
    length_ms = bucket_seconds * 1000
    return time_ms // length_ms * length_ms
