# SPDX-License-Identifier: Apache-2.0
"""The handler of the persister: it stores one batch of one partition as rows, in one transaction with its offset."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monasca_common.kafka.errors import Poison
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import PartitionBatch
from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.rows import Decoded, Measurement
from monasca_common.persister.settings import GroupSettings
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage import parts, row_keys
from monasca_common.storage.base import Kind, Rows, Written
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts
from monasca_common.storage.parts import PartSize

Decoder = Callable[[Sequence[bytes | None]], Decoded[Any]]


class RowsHandler(BatchHandler):
    """A `Processor`'s handler. Threads call it concurrently, each with a different partition.

    It raises `Poison` for messages that are not rows or cannot be stored: these become dead letters, and the remaining
    messages are passed again. It raises `RetryLater` if the database is unavailable, or if a batch is too large for it;
    the next attempt stores smaller parts. It skips messages below the stored offset, and raises `ReadFrom` with that
    offset if a range starts after it. ``wrote``: called with the result and the seconds of each transaction.
    """

    def __init__(
        self,
        common: HandlerParts,
        kind: Kind,
        decode: Decoder,
        wrote: Callable[[Written, float], None],
    ) -> None:
        super().__init__(common)
        self._kind = kind
        self._decode = decode
        self._wrote = wrote
        self._size = PartSize()

    def __call__(self, part: PartitionBatch) -> None:
        decoded = self._decode(part.values)
        if decoded.errors:
            reasons = {index: str(error) for index, error in decoded.errors.items()}
            raise Poison(f"{len(reasons)} messages are not {self._kind} envelopes", reasons=reasons)
        if self._kind is Kind.METRICS:
            rows = Rows(self._kind, decoded.rows, part.offsets)
        else:
            by_id = row_keys.by_id(part.headers, decoded.untimed)
            rows = Rows(self._kind, decoded.rows, part.offsets, message_ids(part), by_id)
        self._write(part, rows)

    def _write(self, part: PartitionBatch, rows: Rows) -> None:
        claim = self._claim(part.topic_partition, part.start_offset, part.next_offset)
        fail_point("persister.before_write")
        began = time.monotonic()
        with self._translated(part.topic_partition), self._writers.writer() as writer:
            for stored in parts.write(writer, claim, rows, self._size):
                self._stored()
                self._wrote(stored.written, time.monotonic() - began)
                began = time.monotonic()


def message_ids(part: PartitionBatch) -> list[bytes]:
    """Return the row key of each message, without creating an object per message."""
    topic, partition = part.topic_partition
    return [
        row_keys.message_key(headers, topic, partition, offset)
        for headers, offset in zip(part.headers, part.offsets, strict=True)
    ]


def decoder(group: GroupSettings) -> Decoder:
    """Return a thread-safe function that decodes values of the group's topic, in JSON or Avro, to rows."""
    return EnvelopeReader(group.registry).reading(_decoder(group))


def _decoder(group: GroupSettings) -> Decoder:
    if group.kind is Kind.METRICS:
        return _MetricDecoders(group.max_cached_series, group.max_dimensions)
    if group.kind is Kind.ALARM_HISTORY:
        return alarm.decode_all
    return partial(log.decode_all if group.kind is Kind.LOGS else event.decode_all, max_dimensions=group.max_dimensions)


class _MetricDecoders(threading.local):
    """A `MetricDecoder` per thread, because it is not thread-safe; each has its own cache."""

    def __init__(self, max_series: int, max_dimensions: int) -> None:
        self._decoder = MetricDecoder(max_series, max_dimensions=max_dimensions)

    def __call__(self, values: Sequence[bytes | None]) -> Decoded[Measurement]:
        return self._decoder.decode_all(values)
