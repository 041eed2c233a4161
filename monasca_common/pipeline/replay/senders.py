# SPDX-License-Identifier: Apache-2.0
"""Sends archived files to Kafka or to storage, on executors. Each call sends one file and returns the number of its
messages by result. A call that fails may have sent some messages of the file. Messages keep their ids, and rows keep
their keys and versions. So sending a file again after a repeated task or replay adds nothing, and the database keeps
newer rows.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from monasca_common.kafka import RegistryUnavailable, portions
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Message, Record, TopicPartition
from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.rows import Decoded
from monasca_common.pipeline.archive import reader
from monasca_common.pipeline.archive.reader import Archive
from monasca_common.pipeline.errors import ReplayFailed
from monasca_common.pipeline.spark.worker_producer import worker_producer
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage import parts, row_keys
from monasca_common.storage.base import Capability, Claim, Kind, Rows, Writer
from monasca_common.storage.errors import MessagesRefused, TooMuchAtOnce
from monasca_common.storage.plugins import open_storage
from monasca_common.storage.settings import StorageSettings

LOG = logging.getLogger(__name__)
_BULK = 1_000
_GROUP = "spark-replay"
_OUTAGE_SECONDS = 60.0  # maximum wait for a registry


@dataclass(frozen=True, slots=True)
class MatchingCount:
    """Counts the selected records without sending them."""

    archive: Archive

    def __call__(self, path: str) -> Counter[str]:
        return Counter(matching=sum(batch.num_rows for batch in self.archive.read(path, ["event_time"])))


@dataclass(frozen=True, slots=True)
class ToKafka:
    """Sends messages to a topic, with their original keys, headers, ids and timestamps. The key determines the
    partition, because the number of partitions can differ from that of the archived topic."""

    archive: Archive
    topic: str
    producer: bytes = field(repr=False)

    def __call__(self, path: str) -> Counter[str]:
        producer = worker_producer(self.producer)
        sent = 0
        for batch in self.archive.read(path):
            records = [record_of(each) for each in reader.messages(self.archive.topic, batch)]
            for portion in portions(records, producer.settings):
                producer.publish(self.topic, portion).raise_for_undelivered()
            sent += len(records)
        return Counter(sent=sent)


def record_of(message: Message) -> Record:
    """Return the record of a message. A message without an id gets an id derived from its partition and offset."""
    headers = tuple(header for header in message.headers if header[0] != MESSAGE_ID_HEADER)
    return Record(message.value, message.key, headers, message.timestamp_ms or None, message_id=message.message_id)


@dataclass(frozen=True, slots=True)
class ToStorage:
    """Stores rows as the persister does. The persister may run concurrently. ``registry``: has the schemas of messages
    in Avro."""

    archive: Archive
    kind: Kind
    storage: StorageSettings = field(repr=False)
    registry: SchemaRegistrySettings | None = field(default=None, repr=False)

    def __call__(self, path: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        storage = open_storage(self.storage)
        keeps_offsets = Capability.OFFSETS in storage.capabilities
        with storage.open_writer() as writer:
            file_writer = _FileWriter(writer, path, self, keeps_offsets=keeps_offsets)
            file_writer.reset(0)
            for batch in self.archive.read(path):
                for start in range(0, batch.num_rows, _BULK):
                    part = batch.slice(start, _BULK)
                    counts.update(file_writer.write(reader.messages(self.archive.topic, part)))
            file_writer.reset(None)
        return counts


Send: TypeAlias = MatchingCount | ToKafka | ToStorage


class _FileWriter:
    """Writes one file to storage. Because storage requires a claim on a range of offsets of a topic, the file serves as
    the topic, and its selected rows have offsets from 0. Each replay resets these offsets, and removes them at its
    end."""

    def __init__(self, writer: Writer, path: str, target: ToStorage, *, keeps_offsets: bool) -> None:
        self._writer = writer
        self._place = TopicPartition(path, 0)
        self._kind = target.kind
        self._keeps_offsets = keeps_offsets
        self._decode = _decoder(target.kind, target.storage.max_dimensions)
        registry = target.registry
        self._envelopes = EnvelopeReader(registry)
        self._wait_seconds = 0.0 if registry is None else registry.unknown_id_seconds + _OUTAGE_SECONDS
        self._size = parts.PartSize()
        self._next = 0

    def reset(self, offset: int | None) -> None:
        """Store the offset from which the file is written; ``None`` removes it."""
        if self._keeps_offsets:
            self._writer.reset_offsets(_GROUP, {self._place: offset}, {})

    def write(self, messages: Sequence[Message]) -> Counter[str]:
        """Store messages. A batch that is too large for the database is stored in parts.

        Raises `StorageError`, `ReplayFailed`, `RegistryUnavailable`.
        """
        decoded = self._decode(self._as_json([message.value for message in messages]))
        claim = Claim(_GROUP, *self._place, None, self._next, self._next + len(messages))
        rows = Rows(
            self._kind,
            decoded.rows,
            [self._next + index for index in decoded.indices],
            () if self._kind is Kind.METRICS else [_row_key(messages[index]) for index in decoded.indices],
            row_keys.by_id([messages[index].headers for index in decoded.indices], decoded.untimed),
        )
        counts = Counter({"unreadable": len(decoded.errors), "refused": 0})
        while self._next < claim.end:
            rows = rows.between(self._next, claim.end)
            try:
                self._write(replace(claim, start=self._next), rows, counts)
            except TooMuchAtOnce:
                LOG.info(
                    "%s: a part of a batch was too large for the database; the next part is smaller", self._place.topic
                )
            except MessagesRefused as error:
                # The database refuses these rows, for example because they are too old.
                counts["refused"] += len(error.reasons)
                rows = rows.without(error.reasons)
        return counts

    def _as_json(self, values: Sequence[bytes | None]) -> Sequence[bytes | None]:
        """Return the envelopes. Wait for the registry, which delays the rejection of an unknown id."""
        until = time.monotonic() + self._wait_seconds
        while True:
            try:
                return self._envelopes.as_json(values)[0]
            except RegistryUnavailable as error:
                if time.monotonic() > until:
                    raise
                time.sleep(error.after or 1.0)

    def _write(self, claim: Claim, rows: Rows, counts: Counter[str]) -> None:
        for stored in parts.write(self._writer.write, claim, rows, self._size):
            written = stored.written
            if written.skipped:
                raise ReplayFailed("another replay is storing the same file")
            counts.update(stored=written.stored, repeated=written.repeated, conflicting=written.conflicting)
            self._next = stored.claim.end


def _row_key(message: Message) -> bytes:
    return row_keys.message_key(message.headers, message.topic, message.partition, message.offset)


def _decoder(kind: Kind, max_dimensions: int) -> Callable[[Sequence[bytes | None]], Decoded[Any]]:
    if kind is Kind.METRICS:
        return MetricDecoder(max_dimensions=max_dimensions).decode_all
    if kind is Kind.ALARM_HISTORY:
        return alarm.decode_all
    return partial(log.decode_all if kind is Kind.LOGS else event.decode_all, max_dimensions=max_dimensions)
