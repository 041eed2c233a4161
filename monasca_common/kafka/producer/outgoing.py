# SPDX-License-Identifier: Apache-2.0
"""The way in, of every call: what a caller sends is checked, sized and given its id, reserved in the book, and handed
over to the client."""

from __future__ import annotations

import dataclasses
import itertools
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, cast

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import DeliveryAbandoned, DeliveryError, QueueFull, WrongType
from monasca_common.kafka.message import MADE_ID_BYTES, MESSAGE_ID_HEADER, Headers, Record
from monasca_common.kafka.producer.client import Client
from monasca_common.kafka.producer.in_flight import Book, Bulk, DoubtfulPending, Latch, Pending, PlainBulk
from monasca_common.kafka.producer.ledger import Ledger
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.poller import Poller
from monasca_common.kafka.producer.topic_limits import TopicLimit
from monasca_common.kafka.settings import ProducerSettings

# What a record takes in a batch beyond its key, value and headers; generous, because it decides what is never sent.
_BATCH_BYTES = 61 + 32
_HEADER_BYTES = 10
_ONLY_BYTES = {bytes}
PLAIN_OVERHEAD_BYTES = _BATCH_BYTES + _HEADER_BYTES + len(MESSAGE_ID_HEADER) + MADE_ID_BYTES
_BUDGET_SHARE = 4  # a portion takes a quarter of the budget at most: a whole one would wait for all others


class Outgoing:
    def __init__(self, settings: ProducerSettings, ledger: Book, ids: MessageIds) -> None:
        self._without_id = settings.topics_without_message_id
        self._verbatim = settings.verbatim
        self._ledger = ledger
        self._ids = ids

    def plain_bulk(
        self, topic: str, records: list[bytes | Record], key: bytes | None, limit: TopicLimit
    ) -> PlainBulk | None:
        """A plain bulk, or ``None`` if a message needs a closer check. It has no Python loop: each step runs in C."""
        if set(map(type, records)) != _ONLY_BYTES or not isinstance(key, bytes | None):
            return None
        plain = cast(list[bytes], records)
        overhead = PLAIN_OVERHEAD_BYTES + len(key or b"")
        if max(map(len, plain)) + overhead > limit.max_bytes:
            return None
        if limit.stamp.asks:
            return None
        message_ids = self._ids.take(len(plain)) if limit.with_ids else None
        return PlainBulk(self._ledger, topic, plain, key, message_ids, overhead, limit)

    def bulk(self, topic: str, records: Iterable[bytes | Record], key: bytes | None, headers: Headers) -> Bulk:
        _check_topic_and_key(topic, key)
        made = [self.one(topic, record, key, headers) for record in records]
        latch = Latch(len(made))
        for pending, _ in made:
            pending.watchers = (latch,)
        return Bulk([pending for pending, _ in made], latch, own=[pending for pending, is_own in made if is_own])

    def one(self, topic: str, record: bytes | Record, key: bytes | None, headers: Headers = ()) -> tuple[Pending, bool]:
        """A message, and whether its id is the caller's own."""
        _check_topic_and_key(topic, key)
        made = record if isinstance(record, Record) else Record(record)
        full, message_id = _with_headers(made, headers, verbatim=self._verbatim)
        key = full.key if full.key is not None else key
        if not isinstance(key, bytes | None) or not isinstance(full.value, bytes | None):
            _wrong_key_or_value(key, full.value)
        _check_time(full.timestamp_ms)
        own = message_id is not None
        size = _size(full, key, message_id)
        message_id = message_id if own else self._new_id(topic)
        return self._pending(Pending(), topic, full, key, message_id, size, len(full.value or b"")), own

    def again(self, old: Pending) -> Pending:
        """The same message under the same id, for another attempt."""
        kind = DoubtfulPending if old.outcome is Outcome.UNKNOWN else Pending
        pending = self._pending(kind(), old.topic, old.record, old.key, old.message_id, old.size, old.value_bytes)
        pending.watchers = ()  # `retry` reports it, however early it is settled; no flush does
        return pending

    def _new_id(self, topic: str) -> bytes | None:
        return None if self._verbatim or topic in self._without_id else self._ids.next()

    def _pending(
        self,
        pending: Pending,
        topic: str,
        record: bytes | Record | None,
        key: bytes | None,
        message_id: bytes | None,
        size: int,
        value_bytes: int,
    ) -> Pending:
        pending.ledger = self._ledger
        pending.topic = topic
        pending.record = record
        pending.key = key
        pending.message_id = message_id
        pending.size = size
        pending.value_bytes = value_bytes
        pending.stamp = self._ledger.stamp
        pending.queued_at = self._ledger.now
        pending.watchers = pending.outcome = pending.successor = None
        return pending


class Entrance:
    """The first steps of every call: messages are made, reserved, and handed over."""

    def __init__(
        self,
        settings: ProducerSettings,
        ledger: Ledger,
        outgoing: Outgoing,
        client: Client,
        poller: Poller,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._outgoing = outgoing
        self._client = client
        self._poller = poller
        self._clock = clock

    # Made

    def make(self, topic: str, records: list[bytes | Record], key: bytes | None, headers: Headers) -> Bulk | PlainBulk:
        limit = self._client.ready.get(topic)
        if limit is not None and not headers:
            plain = self._outgoing.plain_bulk(topic, records, key, limit)
            if plain is not None:
                return plain
        return self._outgoing.bulk(topic, records, key, headers)

    def attach(self, bulk: Bulk | PlainBulk) -> Mapping[Pending, Pending]:
        """Its messages whose ids (the caller's own) are in flight already, each with the message in flight."""
        if isinstance(bulk, PlainBulk) or not bulk.own:
            return {}
        attached = self._ledger.attach(bulk.own)
        if attached:
            bulk.take_fresh([pending for pending in bulk.pendings if pending not in attached])
        return attached

    def next_attempts(self, pendings: Iterable[Pending]) -> Bulk:
        """The new attempts at what is worth sending again, linked to the old ones."""
        again = {pending: self._outgoing.again(pending) for pending in pendings if _worth_sending(pending)}
        attached = self._ledger.attach([pending for pending in again.values() if pending.message_id is not None])
        bulk = Bulk([pending for pending in again.values() if pending not in attached])
        for old, pending in again.items():
            old.successor = attached.get(pending, pending)
        return bulk

    # Reserved

    def enter(self, bulk: Bulk | PlainBulk, deadline: float) -> bool:
        """Reserve the messages as soon as there is room; whether there was room by the deadline."""
        ledger = self._ledger
        while not ledger.enter(bulk):
            if not self._ledger.budget.ever_fits(len(bulk), bulk.size):
                return False
            room = ledger.ask_for_room(len(bulk), bulk.size)
            try:
                opened = self._poller.wait(room, deadline - self._clock.monotonic())
            finally:
                ledger.stop_asking(room)
            if not opened:
                with ledger.serving:
                    ledger.reckon()  # of a poll that has not come back
                return ledger.enter(bulk)
        return True

    def no_room(self, bulk: Bulk | PlainBulk) -> DeliveryError:
        if self._ledger.budget.is_shut:
            return DeliveryAbandoned("the producer was closed before there was room; it was not sent")
        return QueueFull(
            f"no room for {len(bulk)} messages of {bulk.size} bytes: the budget is {self._settings.budget_messages} "
            f"messages and {self._settings.budget_bytes} bytes; Kafka is slow or unavailable, or flush was never "
            "called to collect undelivered sends"
        )

    # Handed over

    def hand_over(self, bulk: Bulk | PlainBulk) -> None:
        """Hand the reserved messages to their client, now or as soon as the limit of their topic is known."""
        self._ledger.tick()  # for the timestamps that it sets, and what waited for room did so for long, perhaps
        if isinstance(bulk, PlainBulk):
            limit = self._client.ready.get(bulk.topic)
            if limit is not None and limit is bulk.limit:
                bulk.stamp = limit.stamp
                if not bulk.stamp.asks:
                    self._client.limits.launch_bulk(limit, bulk)
                    return
            # The limit, or the client, is another one; or all messages are asked for their time from now on.
            bulk = self._ledger.break_up_before_it_is_handed_over(bulk)
        for topic, reserved in bulk.reserved.items():
            self._client.limits.launch(topic, reserved)

    def hand_over_when_there_is_room(self, bulk: Bulk | PlainBulk, deadline: float) -> None:
        if self.enter(bulk, deadline):
            self.hand_over(bulk)
        else:
            self._ledger.refuse(bulk, self.no_room(bulk))


def _worth_sending(pending: Pending) -> bool:
    """Whether a message is neither delivered, nor in flight, nor refused permanently."""
    if pending.outcome is None or pending.outcome is Outcome.DELIVERED:
        return False
    return not pending.error.permanent


def portions(records: Sequence[Record], settings: ProducerSettings) -> Iterator[Sequence[Record]]:
    """The records in bulks that the budget of a producer with these settings has room for, a quarter of it each."""
    most, most_bytes = max(1, settings.budget_messages // _BUDGET_SHARE), settings.budget_bytes // _BUDGET_SHARE
    start = size = 0
    for index, record in enumerate(records):
        weight = _size(record, record.key, record.message_id)
        if index > start and (index - start == most or size + weight > most_bytes):
            yield records[start:index]
            start, size = index, 0
        size += weight
    if records:
        yield records[start:]


def _size(record: Record, key: bytes | None, own_id: bytes | None) -> int:
    """What a message takes of the budget, and of a batch, in bytes."""
    size = PLAIN_OVERHEAD_BYTES + len(record.value or b"") + len(key or b"") + len(own_id or b"")
    return size + sum([_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in record.headers])


def as_list(records: Iterable[bytes | Record]) -> list[bytes | Record]:
    if isinstance(records, bytes | bytearray | str | Record):
        _wrong_type("records: publish takes a list, or another iterable, of records", records)
    return list(records)


def latest(pending: Pending) -> Pending:
    """The last attempt at the same message."""
    while pending.successor is not None:
        pending = pending.successor
    return pending


def _with_headers(record: Record, common: Headers, *, verbatim: bool) -> tuple[Record, bytes | None]:
    """The record with the bulk's headers before its own, and its own id, which may also come as a header.

    An empty id is not an id: all messages that carry one would be the same message. ``verbatim``: the id is left where
    it is.
    """
    message_id = record.message_id
    if not isinstance(message_id, bytes | None):
        _wrong_type("message_id: a message id is bytes or None", message_id)
    headers = (*common, *record.headers)
    for header in headers:
        _check_header(header)
    carried = [] if verbatim else [value for name, value in headers if name == MESSAGE_ID_HEADER]
    if carried:
        message_id = message_id or next(filter(None, carried), None)
        headers = tuple(header for header in headers if header[0] != MESSAGE_ID_HEADER)
    if headers != record.headers:
        record = dataclasses.replace(record, headers=headers)
    return record, message_id or None


def _check_topic_and_key(topic: Any, key: Any) -> None:
    if not isinstance(topic, str):
        _wrong_type("topic: a topic is a str", topic)
    if not isinstance(key, bytes | None):
        _wrong_type("key: a key is bytes or None", key)


def _check_time(timestamp_ms: Any) -> None:
    """librdkafka takes 0 for *now*, and a broker refuses a whole batch for one negative time."""
    if timestamp_ms is None:
        return
    if not isinstance(timestamp_ms, int):
        _wrong_type("timestamp_ms is an int (milliseconds since 1970) or None", timestamp_ms)
    if timestamp_ms <= 0:
        raise WrongType(f"timestamp_ms is above 0 (milliseconds since 1970), or None for now, not {timestamp_ms}")


def _check_header(header: Any) -> None:
    rule = "headers: a header is a tuple of its name, a str, and bytes or None"
    if not isinstance(header, tuple) or len(header) != 2:
        _wrong_type(rule, header)
    name, value = header
    if not isinstance(name, str) or not isinstance(value, bytes | None):
        _wrong_type(rule, value if isinstance(name, str) else name)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise WrongType("headers: the name of a header is text in UTF-8: it has a lone surrogate") from None


def _wrong_key_or_value(key: Any, value: Any) -> NoReturn:
    if isinstance(key, bytes | None):
        _wrong_type("value: a value is bytes or None", value)
    _wrong_type("key: a key is bytes or None", key)


def _wrong_type(rule: str, given: object) -> NoReturn:
    remedy = ""
    if isinstance(given, str) and "bytes" in rule:
        remedy = ": encode it (text.encode()), or write it with a serializer (dumps)"
    elif isinstance(given, bytes) and "str" in rule:
        remedy = ": decode it (name.decode())"
    raise WrongType(f"{rule}, not {type(given).__name__}{remedy}")


class MessageIds:
    """16 bytes each: 8 random ones of this instance, and a counter. Made when a producer opens, never at import:
    a child of a fork would repeat its parent's ids."""

    def __init__(self) -> None:
        self.prefix = os.urandom(8)
        self.numbers = itertools.count()  # `next` of it is atomic, so that threads can share it
        self.pack = struct.Struct(">8sQ").pack

    def next(self) -> bytes:
        return self.pack(self.prefix, next(self.numbers))

    def take(self, count: int) -> list[bytes]:
        return list(map(self.pack, itertools.repeat(self.prefix), itertools.islice(self.numbers, count)))
