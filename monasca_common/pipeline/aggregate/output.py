# SPDX-License-Identifier: Apache-2.0
"""Converts output rows to metric envelopes with message ids, and spools them until they are published. The id is a hash
of the job, specification, period, group and content: equal rows have equal ids, and a corrected row has a different id.
The key of a row in the database is its series and its time (the start of the period). A correction therefore replaces
the row: in any order of arrival, the row with the greatest ``version_ms`` (the envelope's creation_time) is kept. The
publisher must give each correction a greater version than the corrected row.
"""

from __future__ import annotations

import hashlib
import pickle
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Self

from monasca_common.kafka.message import Record
from monasca_common.models import json_text, times
from monasca_common.pipeline.aggregate.usages import Usage
from monasca_common.pipeline.specification import columns
from monasca_common.pipeline.specification.specification import Publisher, Transform

BULK = 1_000
IN_MEMORY_BYTES = 16 * 1024 * 1024
PROVISIONAL = "provisional"
"""The key of value_meta that marks rows of a period that is still open."""


def output(
    publisher: Publisher,
    transform: Transform,
    usage: Usage,
    period_ms: int,
    *,
    version_ms: int,
    provisional: bool = False,
) -> Record:
    """Return the record of one output row for the topic ``metrics``. Its ``message_id`` has 16 bytes.

    ``period_ms``: the start of the period. ``provisional``: whether the period, including its slack, is still open.
    """
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
    value = b'{"metric":%b,"meta":%b,"creation_time":%b}' % (metric, meta, times.seconds_text(version_ms / 1000))
    return Record(value, message_id=_hash(parts))


def dimensions(transform: Transform, usage: Usage) -> dict[str, str]:
    constant = {columns.NAME: transform.name, columns.PERIOD: transform.period}
    return {
        dimension.key: constant.get(dimension.column) or usage.column(dimension.column)
        for dimension in sorted(transform.dimensions, key=lambda dimension: dimension.key)
    }


def value_meta(usage: Usage, *, provisional: bool) -> dict[str, str]:
    """Return the value_meta of the row. All values are strings, because the API requires strings."""
    texts = {
        "record_count": str(usage.count),
        "firstrecord_timestamp_string": _utc(usage.first_ms),
        "lastrecord_timestamp_string": _utc(usage.last_ms),
    }
    return texts | {PROVISIONAL: "true"} if provisional else texts


def _utc(time_ms: float) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _hash(parts: tuple[bytes, ...]) -> bytes:
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()[:16]


class Spool:
    """Holds records to publish, which are written and then read once. Up to `IN_MEMORY_BYTES` stay in memory; more are
    written to an unnamed temporary file, which is removed at the end of the block."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: Record) -> None:
        pickle.dump((record.value, record.message_id), self._file, pickle.HIGHEST_PROTOCOL)
        self.count += 1

    def bulks(self) -> Iterator[list[Record]]:
        """Yield the records in order, at most `BULK` at a time."""
        self._file.seek(0)
        for start in range(0, self.count, BULK):
            pairs = (pickle.load(self._file) for _ in range(min(BULK, self.count - start)))
            yield [Record(value, message_id=message_id) for value, message_id in pairs]
