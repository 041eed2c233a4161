# SPDX-License-Identifier: Apache-2.0
"""What a caller sends: checked, sized, and with its id."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from monasca_common.kafka.errors import WrongType
from monasca_common.kafka.message import MADE_ID_BYTES, MESSAGE_ID_HEADER, Headers, Record
from monasca_common.kafka.settings import ProducerSettings

# What a record takes in a batch beyond its key, value and headers; generous, because it decides what is never sent.
_BATCH_BYTES = 61 + 32
_HEADER_BYTES = 10
PLAIN_OVERHEAD_BYTES = _BATCH_BYTES + _HEADER_BYTES + len(MESSAGE_ID_HEADER) + MADE_ID_BYTES
BUDGET_SHARE = 4  # a portion takes a quarter of the budget at most: a whole one would wait for all others
_ID_PREFIX_BYTES = 11
_ID_CHARACTERS = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # 64, in the order of their codes
_ONLY_BYTES = {bytes}


def new_id_prefix() -> bytes:
    """The part of message ids that is one producer's: 66 random bits. Made when a producer opens, never at import: a
    child of a fork would repeat its parent's ids."""
    return bytes([_ID_CHARACTERS[each & 63] for each in os.urandom(_ID_PREFIX_BYTES)])


def checked(
    record: bytes | Record, key: bytes | None, headers: Headers, *, verbatim: bool
) -> tuple[Record, bytes | None, int]:
    """The message as it is handed over, with its key and all headers but its id; the caller's own id; and its size in
    bytes. Raises `WrongType`."""
    made = record if isinstance(record, Record) else Record(record)
    full, own_id = _with_headers(made, headers, verbatim=verbatim)
    if full.key is None and key is not None:
        full = dataclasses.replace(full, key=key)
    if not isinstance(full.key, bytes | None) or not isinstance(full.value, bytes | None):
        _wrong_key_or_value(full.key, full.value)
    _check_time(full.timestamp_ms)
    return full, own_id, size_of(full, full.key, own_id)


def plain_sizes(records: list[Any], key: bytes | None) -> tuple[int, int] | None:
    """What a list of bytes takes of the budget, and the largest of them; `None` if a message needs a closer check. It
    has no Python loop."""
    if set(map(type, records)) != _ONLY_BYTES:
        return None
    overhead = PLAIN_OVERHEAD_BYTES + len(key or b"")
    lengths = list(map(len, records))
    return sum(lengths) + overhead * len(records), max(lengths) + overhead


def portions(records: Sequence[Record], settings: ProducerSettings) -> Iterator[Sequence[Record]]:
    """The records in bulks that the budget of a producer with these settings has room for, a quarter of it each."""
    most, most_bytes = max(1, settings.budget_messages // BUDGET_SHARE), settings.budget_bytes // BUDGET_SHARE
    start = size = 0
    for index, record in enumerate(records):
        weight = size_of(record, record.key, record.message_id)
        if index > start and (index - start == most or size + weight > most_bytes):
            yield records[start:index]
            start, size = index, 0
        size += weight
    if records:
        yield records[start:]


def size_of(record: Record, key: bytes | None, own_id: bytes | None = None) -> int:
    """What a message takes of the budget, and of a batch, in bytes."""
    size = PLAIN_OVERHEAD_BYTES + len(record.value or b"") + len(key or b"") + len(own_id or b"")
    return size + sum([_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in record.headers])


def as_list(records: Iterable[bytes | Record]) -> list[bytes | Record]:
    if isinstance(records, bytes | bytearray | str | Record):
        _wrong_type("records: publish takes a list, or another iterable, of records", records)
    return list(records)


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


def check_topic_and_key(topic: Any, key: Any) -> None:
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
