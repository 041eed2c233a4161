# SPDX-License-Identifier: Apache-2.0
"""Drafts: what a caller hands over, checked, sized and given its id, but not yet in the producer's book."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NoReturn, cast

from monasca_common.kafka.delivery import Outcome
from monasca_common.kafka.errors import WrongType
from monasca_common.kafka.identity import MessageIds
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Headers, Record
from monasca_common.kafka.producing.bulk import Bulk
from monasca_common.kafka.producing.latch import Latch
from monasca_common.kafka.producing.ledger import Ledger
from monasca_common.kafka.producing.pending import DoubtfulPending, Pending
from monasca_common.kafka.producing.routes import Route
from monasca_common.kafka.settings import ProducerSettings

# What a record takes in a batch beyond its key, value and headers; generous, for it decides what is never sent.
_BATCH_BYTES = 61 + 32
_HEADER_BYTES = 10
_ONLY_BYTES = {bytes}
PLAIN_OVERHEAD_BYTES = _BATCH_BYTES + _HEADER_BYTES + len(MESSAGE_ID_HEADER) + 16


class Drafts:
    def __init__(self, settings: ProducerSettings, ledger: Ledger, ids: MessageIds) -> None:
        self._without_id = settings.topics_without_message_id
        self._ledger = ledger
        self._ids = ids

    def plain_bulk(self, topic: str, records: list[bytes | Record], key: bytes | None, route: Route) -> Bulk | None:
        """``None`` if a message of it needs to be looked at. Without a Python loop: each step here is one of C."""
        if set(map(type, records)) != _ONLY_BYTES or not isinstance(key, bytes | None):
            return None
        plain = cast(list[bytes], records)
        overhead = PLAIN_OVERHEAD_BYTES + len(key or b"")
        if max(map(len, plain)) + overhead > route.max_bytes:
            return None
        message_ids = self._ids.take(len(plain)) if route.with_ids else None
        return Bulk(self._ledger, topic, plain, key, message_ids, overhead)

    def bulk(
        self, topic: str, records: Iterable[bytes | Record], key: bytes | None, headers: Headers
    ) -> tuple[Latch, list[Pending], list[Pending]]:
        """The latch they open, all of them, and those under the caller's own ids."""
        _check_topic_and_key(topic, key)
        latch = Latch(1)
        watchers = (latch,)
        own: list[Pending] = []
        pendings: list[Pending] = []
        ledger, with_id = self._ledger, topic not in self._without_id
        pack, prefix, numbers = self._ids.pack, self._ids.prefix, self._ids.numbers
        now, overhead = ledger.now, PLAIN_OVERHEAD_BYTES + len(key or b"")
        for record in records:
            if record.__class__ is bytes and not headers:  # written out: a third of the cost of a bulk
                pending = Pending()
                pending.ledger = ledger
                pending.topic = topic
                pending.record = record
                pending.key = key
                pending.message_id = pack(prefix, next(numbers)) if with_id else None
                pending.size = len(record) + overhead
                pending.queued_at = now
                pending.outcome = pending.successor = None
            else:
                pending, is_own = self.one(topic, record, key, headers)
                if is_own:
                    own.append(pending)
            pending.watchers = watchers
            pendings.append(pending)
        latch.left = len(pendings)
        return latch, pendings, own

    def one(self, topic: str, record: bytes | Record, key: bytes | None, headers: Headers = ()) -> tuple[Pending, bool]:
        """A message, and whether its id is the caller's own."""
        _check_topic_and_key(topic, key)
        full, message_id = _with_headers(record if isinstance(record, Record) else Record(record), headers)
        key = full.key if full.key is not None else key
        if not isinstance(key, bytes | None) or not isinstance(full.value, bytes | None):
            _wrong_type("a key and a value are bytes or None", full.value if isinstance(key, bytes | None) else key)
        own = message_id is not None
        if not isinstance(message_id, bytes | None):
            _wrong_type("a message id is bytes or None", message_id)
        size = PLAIN_OVERHEAD_BYTES + len(full.value or b"") + len(key or b"") + len(message_id or b"")
        size += sum(_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in full.headers)
        message_id = message_id if own else self._new_id(topic)
        return self._pending(Pending(), topic, full, key, message_id, size), own

    def again(self, old: Pending) -> Pending:
        """The same message under the same id, for another attempt."""
        kind = DoubtfulPending if old.outcome is Outcome.UNKNOWN else Pending
        pending = self._pending(kind(), old.topic, old.record, old.key, old.message_id, old.size)
        pending.watchers = (Latch(1),)  # `retry` tells of it, however early it is settled; no flush does
        return pending

    def _new_id(self, topic: str) -> bytes | None:
        return None if topic in self._without_id else self._ids.next()

    def _pending(
        self,
        pending: Pending,
        topic: str,
        record: bytes | Record | None,
        key: bytes | None,
        message_id: bytes | None,
        size: int,
    ) -> Pending:
        pending.ledger = self._ledger
        pending.topic = topic
        pending.record = record
        pending.key = key
        pending.message_id = message_id
        pending.size = size
        pending.queued_at = self._ledger.now
        pending.watchers = pending.outcome = pending.successor = None
        return pending


def as_list(records: Iterable[bytes | Record]) -> list[bytes | Record]:
    if isinstance(records, bytes | bytearray | str | Record):
        _wrong_type("publish takes an iterable of bytes or Record", records)
    return list(records)


def latest(pending: Pending) -> Pending:
    """The last attempt at the same message."""
    while pending.successor is not None:
        pending = pending.successor
    return pending


def _with_headers(record: Record, common: Headers) -> tuple[Record, bytes | None]:
    """The record with the bulk's headers before its own, and its own id, which may also come as a header."""
    message_id = record.message_id
    headers = (*common, *record.headers)
    for header in headers:
        _check_header(header)
    carried = [value for name, value in headers if name == MESSAGE_ID_HEADER]
    if carried:
        message_id = message_id if message_id is not None else carried[0]
        headers = tuple(header for header in headers if header[0] != MESSAGE_ID_HEADER)
    if headers != record.headers:
        record = dataclasses.replace(record, headers=headers)
    return record, message_id


def _check_topic_and_key(topic: Any, key: Any) -> None:
    if not isinstance(topic, str):
        _wrong_type("a topic is a str", topic)
    if not isinstance(key, bytes | None):
        _wrong_type("a key is bytes or None", key)


def _check_header(header: Any) -> None:
    rule = "a header is a tuple of its name, a str, and bytes or None"
    if not isinstance(header, tuple) or len(header) != 2:
        _wrong_type(rule, header)
    name, value = header
    if not isinstance(name, str) or not isinstance(value, bytes | None):
        _wrong_type(rule, value if isinstance(name, str) else name)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise WrongType("the name of a header is text in UTF-8: it has a lone surrogate") from None


def _wrong_type(rule: str, given: object) -> NoReturn:
    raise WrongType(f"{rule}, not {type(given).__name__}")
