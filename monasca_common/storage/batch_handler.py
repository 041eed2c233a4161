# SPDX-License-Identifier: Apache-2.0
"""The handler of services that store the messages of topics: it decodes one batch of one partition, and stores its rows
with the offset in one transaction.

A service provides a `Decoder` for each topic, and a function that stores rows. To write a decoder, read the columns of
the batch, build a row for each element, record the row's message and the element's index in it, report elements without
a row as `Faults`, and return the result of `rows_of_kind`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from monasca_common.kafka import Batch, Hook
from monasca_common.kafka.errors import Poison, ReadFrom, RetryLater
from monasca_common.kafka.failpoints import fail_point
from monasca_common.kafka.message import PartitionBatch, TopicPartition
from monasca_common.runtime.member_health import MemberHealth, MemberState
from monasca_common.storage import parts, row_keys
from monasca_common.storage.base import Claim, Kind, Rows, Writer, Written
from monasca_common.storage.batch_rows import BatchRows, RowOrigin
from monasca_common.storage.errors import MessagesRefused, RangeBeyondNext, StorageError, StorageUnavailable
from monasca_common.storage.parts import PartSize, WriteResult
from monasca_common.storage.start_offsets import StartOffsets
from monasca_common.storage.writer_pool import WriterPool

LOG = logging.getLogger(__name__)

R = TypeVar("R", bound=BatchRows)
R_co = TypeVar("R_co", bound=BatchRows, covariant=True)


class Faults:
    """The messages, and elements of messages, that cannot be stored, with the reasons by offset."""

    def __init__(self) -> None:
        self.reasons: dict[int, list[str]] = {}
        self._messages: set[int] = set()
        self._elements: set[RowOrigin] = set()

    def add(self, offset: int, index: int | None, reason: str, table: str = "") -> None:
        """Add an element of a message, or the whole message if ``index`` is ``None``. ``table``: see `RowOrigin`."""
        if index is None:
            self._messages.add(offset)
        else:
            self._elements.add(RowOrigin(offset, index, table))
            reason = f"element {index}: {reason}"
        self.reasons.setdefault(offset, []).append(reason)

    def has_message(self, offset: int) -> bool:
        return offset in self._messages

    def __contains__(self, origin: Any) -> bool:
        return origin.offset in self._messages or origin in self._elements


class Decoder(Protocol[R_co]):
    """Decodes batches of one topic into rows. Several threads share it.

    A batch has columns of equal length: ``offsets``, ``keys``, ``values`` (``None`` for a deletion), ``timestamps`` and
    ``headers``. A column is read when it is first used, so a decoder pays only for the columns that it uses.

    A message may have several rows, in the order of its elements. The id of such a row is the id of the message plus
    the index of the element, so the index must be the same whenever the message is decoded again: count all elements,
    including those without a row.

    A message in ``faults`` becomes a dead letter with all its reasons. Its other elements are stored; rows of refused
    elements may be returned, but are not stored. A decoder raises `RetryLater` if it cannot decode now, for example
    because a schema registry is unavailable. It raises no other error.
    """

    def __call__(self, part: PartitionBatch, faults: Faults) -> R_co:
        """Return the rows of a batch in order of offset, and add its faults to ``faults``."""


def rows_of_kind(
    kind: Kind,
    part: PartitionBatch,
    values: Sequence[Any],
    positions: Sequence[int] | None = None,
    *,
    indexes: Sequence[int] = (),
    untimed: Collection[int] = (),
    dead: Container[int] = (),
) -> Rows:
    """Return the rows of a batch. The key of a metric's row is its series and time; other rows have the message id.

    ``positions``: the position in the batch of each row's message; if ``None``, each message has a row. ``indexes``:
    the index of each row in its message, if messages may have several rows, and ``dead`` then contains the offsets of
    dead letters. ``untimed``: see `Decoded.untimed`.
    """

    def of_rows(column: Sequence[Any]) -> Sequence[Any]:
        return column if positions is None else [column[position] for position in positions]

    offsets = of_rows(part.offsets)
    if kind is Kind.METRICS:
        return Rows(kind, values, offsets, indexes=indexes)
    headers = of_rows(part.headers)
    ids = row_keys.message_keys(headers, part.topic_partition, offsets)
    if indexes:
        ids = list(map(row_keys.row_id, ids, indexes))
    of_dead = [offset in dead for offset in offsets] if indexes else ()
    return Rows(kind, values, offsets, ids, row_keys.by_id(headers, untimed, of_dead), indexes)


def store_rows(writer: Writer, claim: Claim, rows: Rows) -> Written:
    """Store rows of one kind, as the argument ``store`` of a `BatchHandler`."""
    return writer.write(claim, rows)


class HandlerParts(NamedTuple):
    """The parts of a member that its handler uses in one attempt. ``fail`` ends the member."""

    group: str
    writers: WriterPool
    starts: StartOffsets
    health: MemberHealth
    fail: Callable[[Exception], None]


class BatchHandler(Hook, Generic[R]):
    """A `Processor`'s handler, and a hook of the processor. Threads call it concurrently, each with a different
    partition; after a rebalance, a call of the previous assignment may still be running.

    ``decoders``: by topic. ``store``: stores rows and the end of their claim in one transaction, and raises the errors
    of `Writer.write`. ``wrote``: called with the result of each transaction and its duration in seconds.

    It raises `Poison` for messages that cannot be decoded or stored: these become dead letters, and the processor calls
    it again with the remaining messages. If only some elements of a message cannot be stored, the others are kept in
    memory until the dead letter of the message is acknowledged, and are stored by the transaction that moves the offset
    past the message. Those of a partition that was revoked or lost are dropped: an earlier call that needs them stores
    nothing.

    It raises `RetryLater` if the database is unavailable, or if a batch is too large for it; the next attempt stores
    smaller parts. It skips messages below the stored offset, and raises `ReadFrom` with that offset if a range starts
    after it.
    """

    def __init__(
        self,
        common: HandlerParts,
        decoders: Mapping[str, Decoder[R]],
        store: Callable[[Writer, Claim, R], WriteResult],
        wrote: Callable[[Any, float], None],
    ) -> None:
        self._group, self._writers, self._starts, self._health, self._fail = common
        self._decoders = decoders
        self._store = store
        self._wrote = wrote
        self._size = PartSize()
        self._siblings: dict[TopicPartition, dict[int, R | None]] = defaultdict(dict)  # `None`: dropped
        self._released: set[TopicPartition] = set()

    def __call__(self, part: PartitionBatch) -> None:
        partition, faults = part.topic_partition, Faults()
        rows = self._decoders[partition.topic](part, faults)
        if not faults.reasons:
            try:
                self._write(self._claim(partition, part.start_offset, part.next_offset), rows, part.offsets)
                return
            except MessagesRefused as refused:
                for origin, reason in refused.reasons.items():
                    faults.add(origin.offset, origin.element, reason, origin.table)
                rows = self._decoders[partition.topic](part, faults)  # the keys of siblings can depend on the faults
        rows = rows.without(faults)
        siblings = self._siblings[partition]
        for offset in faults.reasons:
            if len(kept := rows.between(offset, offset + 1)):
                siblings[offset] = kept
            else:
                siblings.pop(offset, None)
        positions = {offset: position for position, offset in enumerate(part.offsets)}
        texts = {positions[offset]: "; ".join(reasons) for offset, reasons in faults.reasons.items()}
        raise Poison(f"{len(texts)} messages cannot be stored", reasons=texts)

    def trace(self) -> None:
        """Write a span for each transaction of a traced batch."""
        from monasca_common.kafka.tracing import current_span

        self._store = current_span("store rows")(self._store)

    def after_poll(self, batch: Batch) -> None:
        """Drop the siblings of partitions that this member no longer owns."""
        self._released.difference_update(part.topic_partition for part in batch.partitions)
        for partition in self._released:
            siblings = self._siblings[partition]
            siblings.update(dict.fromkeys(list(siblings)))

    def after_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self._released.update(partitions)

    def after_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._released.update(partitions)

    def accounted(self, partition: TopicPartition, start: int, end: int) -> None:
        """Advance the stored offset past dead letters and offsets without a message, and store the other elements of
        these dead letters. A `Processor` calls it before it commits to Kafka. Raises `RetryLater` and `ReadFrom` like
        the handler."""
        self._write(self._claim(partition, start, end), None)

    def _write(self, claim: Claim, rows: R | None, offsets: Collection[int] = ()) -> None:
        """Store the rows of the messages at these offsets, and the siblings of dead letters in the range of the claim.
        Raises `MessagesRefused` for the rows."""
        partition = claim.topic_partition
        siblings = self._siblings[partition]
        needed = self._needed(claim, offsets) if siblings else {}
        chosen = [*([] if rows is None else [rows]), *needed.values()]
        try:
            with self._translated(partition), self._writers.writer() as writer:
                if chosen:
                    self._write_parts(writer, claim, chosen[0].joined(chosen[1:]) if chosen[1:] else chosen[0])
                else:
                    writer.accounted(claim)
                    self._stored()
        except MessagesRefused as error:
            others = {origin: reason for origin, reason in error.reasons.items() if origin.offset not in needed}
            for origin in error.reasons.keys() - others.keys():
                needed[origin.offset] = siblings[origin.offset] = needed[origin.offset].without({origin})
                text = "element %s of the dead letter %s/%d/%d is not stored: %s"
                LOG.warning(text, origin.element, *partition, origin.offset, error.reasons[origin])
            if others:
                raise MessagesRefused(others) from error
            self._write(claim, rows, offsets)
        for offset in list(siblings):
            if offset < claim.end:
                siblings.pop(offset, None)

    def _needed(self, claim: Claim, offsets: Collection[int]) -> dict[int, R]:
        """Return the siblings in the range of the claim. Raises `ReadFrom` if any were dropped."""
        siblings = self._siblings[claim.topic_partition]
        # A message that is read again has its own rows; in a recreated topic, its offset belongs to another message.
        # Its siblings remain for the call of an earlier assignment.
        read, needed = set(offsets), dict[int, R]()
        for offset, kept in list(siblings.items()):  # a copy, because other calls of the partition may change it
            if claim.start <= offset < claim.end and offset not in read:
                if kept is None:
                    siblings.pop(offset, None)
                    raise ReadFrom(claim.start)
                needed[offset] = kept
        return needed

    def _write_parts(self, writer: Writer, claim: Claim, rows: R) -> None:
        fail_point("storage.before_write")
        began = time.monotonic()
        for stored in parts.write(partial(self._store, writer), claim, rows, self._size):
            self._stored()
            self._wrote(stored.written, time.monotonic() - began)
            began = time.monotonic()

    def _claim(self, partition: TopicPartition, start: int, end: int) -> Claim:
        topic_id = self._starts.topic_ids.get(partition.topic)
        return Claim(self._group, partition.topic, partition.partition, topic_id, start, end)

    def _stored(self) -> None:
        """Record that the database is available."""
        self._health.waits(MemberState.WAITING_FOR_DATABASE, "")

    @contextlib.contextmanager
    def _translated(self, partition: TopicPartition) -> Iterator[None]:
        """Translate storage errors to processor errors, and set the health of the member."""
        try:
            yield
        except MessagesRefused:
            raise
        except StorageUnavailable as error:
            self._health.waits(MemberState.WAITING_FOR_DATABASE, str(error), partition)
            raise RetryLater(error.after_seconds) from error
        except RangeBeyondNext as error:
            raise ReadFrom(error.next_offset) from error
        except StorageError as error:
            # Neither a retry nor the omission of single rows would help.
            self._fail(error)
            raise RetryLater from error
