# SPDX-License-Identifier: Apache-2.0
"""Archived files to where they are wanted again, on the executors: each says what became of one file.

Whatever is sent keeps its id, and a row its key and version. So a file that is sent again, because a task or a whole
replay was repeated, adds nothing; and what a database has newer, it keeps.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monasca_common.kafka.errors import MessagingError
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Message, Record, TopicPartition
from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.rows import Decoded
from monasca_common.pipeline.archive import reading
from monasca_common.pipeline.archive.layout import HOUR_MS
from monasca_common.pipeline.archive.selection import Selection
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.errors import PipelineError, ReplayFailed
from monasca_common.pipeline.spark.worker_producer import worker_producer
from monasca_common.storage import row_keys
from monasca_common.storage.base import Capability, Claim, Kind, Rows, Writer, Written
from monasca_common.storage.errors import RowsRefused, StorageError
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.settings import StorageSettings

_BULK = 1_000
_GROUP = "spark-replay"


@dataclass(frozen=True, slots=True)
class Archive:
    """What is read, by executors."""

    location: str = field(repr=False)
    topic: str
    selection: Selection


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one file, or of several. ``counts``: what became of what was wanted; ``hours``: what was wanted of each, by
    its start in ms. ``failure``: why not all of it was sent."""

    counts: Counter[str] = field(default_factory=Counter)
    hours: Counter[int] = field(default_factory=Counter)
    failure: str | None = None


Send = Callable[[str], Outcome]


@dataclass(frozen=True, slots=True)
class Counting:
    """Sends nothing."""

    archive: Archive

    def __call__(self, path: str) -> Outcome:
        import pyarrow as pa

        columns = ["event_time", "value"] if self.archive.selection.looks_inside else ["event_time"]
        hours: Counter[int] = Counter()
        try:
            for batch in reading.read(Store(self.archive.location), path, self.archive.selection, columns):
                times = batch.column("event_time").cast(pa.int64()).to_numpy()
                hours.update((times // HOUR_MS * HOUR_MS).tolist())
        except PipelineError as error:
            return Outcome(failure=f"{path}: {error}")
        return Outcome(Counter(matching=hours.total()), hours)


@dataclass(frozen=True, slots=True)
class ToKafka:
    """With keys, headers, ids and timestamps as they were. The partition is chosen by the key, as for every message:
    the topic may have another number of them than the one that was archived."""

    archive: Archive
    topic: str
    producer: bytes = field(repr=False)

    def __call__(self, path: str) -> Outcome:
        producer = worker_producer(self.producer)
        sent = 0
        try:
            for batch in reading.read(Store(self.archive.location), path, self.archive.selection):
                records = [record_of(each) for each in reading.messages(self.archive.topic, batch)]
                for start in range(0, len(records), _BULK):
                    report = producer.publish(self.topic, records[start : start + _BULK])
                    sent += report.delivered_count
                    report.raise_for_undelivered()
        except (PipelineError, MessagingError) as error:
            return Outcome(Counter(sent=sent), failure=f"{path}: {error}")
        return Outcome(Counter(sent=sent))


def record_of(message: Message) -> Record:
    """What was without an id gets the one by which readers knew it: where it once was."""
    headers = tuple(header for header in message.headers if header[0] != MESSAGE_ID_HEADER)
    return Record(message.value, message.key, headers, message.timestamp_ms, message_id=message.message_id)


@dataclass(frozen=True, slots=True)
class ToStorage:
    """Rows, as the persister would have stored them; it may run meanwhile."""

    archive: Archive
    kind: Kind
    storage: bytes = field(repr=False)

    def __call__(self, path: str) -> Outcome:
        outcome = Outcome()
        try:
            storage = open_storage(pickle.loads(self.storage))
            keeps_offsets = Capability.TRANSACTIONAL_OFFSETS in storage.capabilities
            with storage.open_writer() as writer:
                filing = _Filing(writer, path, self.kind, keeps_offsets=keeps_offsets)
                with filing:
                    for batch in reading.read(Store(self.archive.location), path, self.archive.selection):
                        for start in range(0, batch.num_rows, _BULK):
                            part = batch.slice(start, _BULK)
                            outcome.counts.update(filing.write(reading.messages(self.archive.topic, part)))
        except (PipelineError, StorageError) as error:
            return Outcome(outcome.counts, failure=f"{path}: {error}")
        return outcome


class _Filing:
    """Storage takes rows with a claim on a range of a topic. Here a file is the topic, and its wanted rows have the
    offsets from 0: begun anew with each replay of it, and forgotten at its end."""

    def __init__(self, writer: Writer, path: str, kind: Kind, *, keeps_offsets: bool) -> None:
        self._writer = writer
        self._place = TopicPartition(path, 0)
        self._kind = kind
        self._keeps_offsets = keeps_offsets
        self._decode = _decoder(kind)
        self._next = 0

    def __enter__(self) -> None:
        self._reset(0)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._reset(None)

    def _reset(self, offset: int | None) -> None:
        if self._keeps_offsets:
            self._writer.reset_offsets(_GROUP, {self._place: offset}, {})

    def write(self, messages: Sequence[Message]) -> Counter[str]:
        """Raises `StorageError`, `ReplayFailed`."""
        decoded = self._decode([message.value for message in messages])
        claim = Claim(_GROUP, *self._place, None, self._next, self._next + len(messages))
        rows = Rows(
            self._kind,
            decoded.rows,
            [self._next + index for index in decoded.indices],
            () if self._kind is Kind.METRICS else [_row_key(messages[index]) for index in decoded.indices],
        )
        written, refused = self._write(claim, rows)
        if written.skipped:
            raise ReplayFailed("another replay stores the same file at this moment")
        self._next = claim.end
        counts = {"unreadable": len(decoded.errors), "refused": refused}
        counts |= {"stored": written.stored, "repeated": written.repeated, "conflicting": written.conflicting}
        return Counter(counts)

    def _write(self, claim: Claim, rows: Rows) -> tuple[Written, int]:
        """And how many rows this database refuses: of a time that it does not keep, for one."""
        try:
            return self._writer.write(claim, rows), 0
        except RowsRefused as error:
            rest = _without(rows, error.reasons)
            written, refused = self._write(claim, rest)
            return written, refused + len(error.reasons)


def _without(rows: Rows, positions: Mapping[int, object]) -> Rows:
    def kept(column: Sequence[Any]) -> list[Any]:
        return [each for position, each in enumerate(column) if position not in positions]

    return Rows(rows.kind, kept(rows.values), kept(rows.offsets), kept(rows.message_ids))


def _row_key(message: Message) -> bytes:
    return row_keys.message_key(message.headers, message.topic, message.partition, message.offset)


def _decoder(kind: Kind) -> Callable[[Sequence[bytes | None]], Decoded[Any]]:
    if kind is Kind.METRICS:
        return MetricDecoder().decode_all
    if kind is Kind.ALARM_HISTORY:
        return alarm.decode_all
    return log.decode_all if kind is Kind.LOGS else event.decode_all


def portable(settings: StorageSettings) -> bytes:
    """For executors. Read-only views of dictionaries cannot be pickled."""
    return pickle.dumps(replace(settings, retention_days=dict(settings.retention_days)))
