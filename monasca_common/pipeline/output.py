# SPDX-License-Identifier: Apache-2.0
"""Output rows as metric envelopes, and the ids under which they are published.

The id is a hash of job, specification, period, group and content: publishing the same row again is a repeat of one
message, and a corrected row is another. The row in a database is keyed by (series, time), and time is the start of the
period: so a correction replaces, and the greater ``version_ms`` (the envelope's creation_time) decides, in whatever
order they arrive. Whoever publishes must give each correction a greater version than the row before it had.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from monasca_common.models import json_text
from monasca_common.pipeline import columns
from monasca_common.pipeline.specification import Transform
from monasca_common.pipeline.usages import Usage

PROVISIONAL = "provisional"
"""The key of value_meta that marks rows of a period which is not over yet."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Whose the output is: the job's name, and tenant and region of its envelopes."""

    job: str
    tenant: str
    region: str


@dataclass(frozen=True, slots=True)
class Output:
    """A message for the topic ``metrics``; ``message_id`` has 16 bytes."""

    message_id: bytes
    value: bytes


def output(
    publisher: Publisher,
    transform: Transform,
    usage: Usage,
    period_ms: int,
    *,
    version_ms: int,
    provisional: bool = False,
) -> Output:
    """``period_ms``: the start of the period. ``provisional``: its end (and the slack after it) is still to come."""
    metric = json_text.write(
        {
            "name": transform.name,
            "dimensions": dimensions(transform, usage),
            "timestamp": period_ms,
            "value": usage.quantity + 0.0,
            "value_meta": value_meta(usage, provisional=provisional),
        }
    )
    meta = json_text.write({"tenantId": publisher.tenant, "region": publisher.region})
    group = json_text.write(usage.group)
    parts = (publisher.job.encode(), transform.metric_id.encode(), b"%d" % period_ms, group, metric, meta)
    value = b'{"metric":%b,"meta":%b,"creation_time":%b}' % (metric, meta, _seconds(version_ms))
    return Output(_hash(parts), value)


def dimensions(transform: Transform, usage: Usage) -> dict[str, str]:
    constant = {columns.NAME: transform.name, columns.PERIOD: transform.period}
    return {
        dimension.key: constant.get(dimension.column) or usage.column(dimension.column)
        for dimension in sorted(transform.dimensions, key=lambda dimension: dimension.key)
    }


def value_meta(usage: Usage, *, provisional: bool) -> dict[str, str]:
    """Strings, as the API asks of value_meta."""
    texts = {
        "record_count": str(usage.count),
        "firstrecord_timestamp_string": _utc(usage.first_ms),
        "lastrecord_timestamp_string": _utc(usage.last_ms),
    }
    return texts | {PROVISIONAL: "true"} if provisional else texts


def _utc(time_ms: float) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _seconds(time_ms: int) -> bytes:
    """creation_time has always been in whole seconds; milliseconds are written where they say more."""
    seconds, rest_ms = divmod(time_ms, 1000)
    return b"%d.%03d" % (seconds, rest_ms) if rest_ms else b"%d" % seconds


def _hash(parts: tuple[bytes, ...]) -> bytes:
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()[:16]
