# SPDX-License-Identifier: Apache-2.0
"""The handler of the sink: it stores one batch of one partition in all tables of its topic, in one transaction."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from monasca_common.kafka.errors import Poison
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.sink.decoder import Faults, TopicDecoder
from monasca_common.storage.base import Claim
from monasca_common.storage.batch_handler import BatchHandler, HandlerParts
from monasca_common.storage.errors import StorageUnavailable, TooMuchAtOnce
from monasca_common.storage.parts import PartSize
from monasca_common.storage.sql.writer import SqlWriter
from monasca_common.storage.tables.rows import TableChanges, joined_changes
from monasca_common.storage.tables.writer import Applied, ChangesRefused, TablesWriter

Changes = Sequence[TableChanges]


class SinkHandler(BatchHandler):
    """A `Processor`'s handler, which raises the errors of `BatchHandler`. ``applied``: called with the result and the
    seconds of each transaction.

    A message with elements that cannot be stored becomes a dead letter. Its other elements are kept in memory until the
    dead letter is acknowledged, and stored by the transaction that moves the offset over the message.
    """

    def __init__(
        self,
        common: HandlerParts,
        decoders: Mapping[str, TopicDecoder],
        tables: Mapping[str, TablesWriter],
        applied: Callable[[Applied, float], None],
    ) -> None:
        super().__init__(common)
        self._decoders = decoders
        self._tables = tables
        self._applied = applied
        self._size = PartSize()
        self._siblings: dict[TopicPartition, dict[int, Changes]] = defaultdict(dict)

    def __call__(self, part: PartitionBatch) -> None:
        partition, faults = part.topic_partition, Faults()
        for offset in self._siblings[partition].keys() & set(part.offsets) if self._siblings[partition] else ():
            # The message is read again. In a recreated topic, the offset belongs to another message.
            del self._siblings[partition][offset]
        changes: Changes = self._decoders[partition.topic].decode(part, faults)
        claim = self._claim(partition, part.start_offset, part.next_offset)
        with self._translated(partition), self._writers.writer() as writer:
            assert isinstance(writer, SqlWriter)
            try:
                if not faults.reasons:
                    self._store(writer, claim, part.offsets, changes)
                    return
                if any(not faults.has_message(offset) for offset in faults.reasons):
                    self._store(writer, claim, part.offsets, changes, trial=True)
            except ChangesRefused as refused:
                if not {offset for _, offset, _, _ in refused.places} <= set(part.offsets):
                    raise  # a kept sibling: the member restarts, and reads its message again
                tables = {each.name: each for each in self._decoders[partition.topic].tables}
                for table, offset, index, reason in refused.places:
                    faults.row(tables[table.name], offset, index, reason)
        kept = [each.without(faults.refused) for each in changes]
        for offset in faults.reasons:
            self._siblings[partition][offset] = [each.between(offset, offset + 1) for each in kept]
        positions = {offset: position for position, offset in enumerate(part.offsets)}
        texts = {positions[offset]: "; ".join(reasons) for offset, reasons in faults.reasons.items()}
        raise Poison(f"{len(texts)} messages cannot be stored", reasons=texts)

    def accounted(self, partition: TopicPartition, start: int, end: int) -> None:
        if not any(start <= offset < end for offset in self._siblings[partition]):
            super().accounted(partition, start, end)
            return
        with self._translated(partition), self._writers.writer() as writer:
            self._store(writer, self._claim(partition, start, end), (), self._decoders[partition.topic].nothing)

    def _store(
        self, writer: Any, claim: Claim, offsets: Sequence[int], changes: Changes, *, trial: bool = False
    ) -> None:
        """Store the changes, and kept siblings, in parts that the database completes within its time-outs. ``trial``:
        only check whether the database refuses rows, because their siblings will be kept."""
        siblings, tables = self._siblings[claim.topic_partition], self._tables[claim.topic]
        for offset, kept in siblings.items():
            if claim.start <= offset < claim.end and not trial:
                changes = joined_changes(changes, kept)
        most, start = self._size.most_rows, claim.start
        count = min(len(offsets), most or len(offsets))
        for end in (*(offsets[most::most] if most else ()), claim.end):
            part = (
                [each.between(start, end) for each in changes] if (start, end) != (claim.start, claim.end) else changes
            )
            began = time.monotonic()
            fail_point("sink.before_write")
            try:
                if trial:
                    tables.trial(writer, replace(claim, end=end), part)
                else:
                    applied = tables.write(writer, replace(claim, start=start, end=end), part)
                    self._applied(applied, time.monotonic() - began)
            except TooMuchAtOnce as error:
                if self._size.too_much(count, time.monotonic() - began):
                    raise
                raise StorageUnavailable(f"a single message is too much for the database now: {error}") from error
            self._size.worked(count, time.monotonic() - began)
            self._stored()
            start = end
        for offset in [] if trial else [offset for offset in siblings if offset < claim.end]:
            del siblings[offset]
