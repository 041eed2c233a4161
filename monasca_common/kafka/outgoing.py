# SPDX-License-Identifier: Apache-2.0
"""Checks records to send, and computes their sizes and ids."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import add, attrgetter
from typing import Any, NamedTuple, TypeVar

from monasca_common.kafka.errors import WrongType
from monasca_common.kafka.message import MADE_ID_BYTES, MESSAGE_ID_HEADER, Headers, IdentifiedRecords, Record
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import ANY_PARTITION

# Upper bounds of the bytes in a batch beyond key, value and headers, because a message over the limit is not sent.
_BATCH_BYTES = 61 + 32
_HEADER_BYTES = 10
PLAIN_OVERHEAD_BYTES = _BATCH_BYTES + _HEADER_BYTES + len(MESSAGE_ID_HEADER) + MADE_ID_BYTES
BUDGET_SHARE = 4  # a portion takes at most a quarter of the budget; a larger portion would wait for all other messages
_ID_PREFIX_BYTES = 11
_ID_CHARACTERS = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # 64 characters, ordered by code
_ONLY_BYTES = {bytes}
_COLUMNS_OF = attrgetter("value", "message_id", "headers", "key", "timestamp_ms", "partition")
T = TypeVar("T")
_TYPES: dict[str, tuple[Any, str]] = {
    "topic": (str, "a str"),
    "key": (bytes | None, "bytes or None"),
    "value": (bytes | None, "bytes or None"),
    "message_id": (bytes | None, "bytes or None"),
    "timestamp_ms": (int | None, "an int (milliseconds since 1970) or None"),
    "partition": (int | None, "an int or None"),
    "a header": (tuple, "a tuple of a name and a value"),
    "the name of a header": (str, "a str"),
    "the value of a header": (bytes | None, "bytes or None"),
}


def new_id_prefix() -> bytes:
    """Create the part of message ids that identifies one producer: 66 random bits. Call it when a producer opens, never
    at import, because a forked child would repeat its parent's ids."""
    return bytes([_ID_CHARACTERS[each & 63] for each in os.urandom(_ID_PREFIX_BYTES)])


def checked(
    record: bytes | Record, key: bytes | None, headers: Headers, *, verbatim: bool
) -> tuple[Record, bytes | None, int]:
    """Return the record with its key and headers, the caller's id, and the size in bytes. Raises `WrongType`."""
    made = record if isinstance(record, Record) else Record(record)
    full, own_id = _with_headers(made, headers, verbatim=verbatim)
    if full.key is None and key is not None:
        full = dataclasses.replace(full, key=key)
    check("key", full.key)
    check("value", full.value)
    time_ms = full.timestamp_ms  # librdkafka reads 0 as *now*, and a broker refuses a whole batch for a negative time
    check("timestamp_ms", time_ms)
    if time_ms is not None and not 0 < time_ms < 2**63:
        raise WrongType(f"timestamp_ms must be above 0 (milliseconds since 1970), or None for now, not {time_ms}")
    check("partition", full.partition)
    if full.partition is not None and not ANY_PARTITION <= full.partition < 2**31:
        raise WrongType(f"partition must be 0 to 2147483647, or None for any, not {full.partition}")
    return full, own_id, size_of(full, full.key, own_id)


class PlainBulk(NamedTuple):
    """Plain messages as columns, their total size, and the size of the largest message, in bytes. ``ids``: the caller's
    ids, or ``None``."""

    values: list[bytes]
    ids: list[bytes] | None
    size: int
    largest: int


def plain_bulk(records: Sequence[Any], key: bytes | None) -> PlainBulk | None:
    """Return records that have only values, or only values and ids, as columns, without a Python loop. For other
    records, return ``None``."""
    values: Any = records
    ids: list[bytes] | None = None
    count = len(records)
    if isinstance(records, IdentifiedRecords):
        values, ids = records.values, records.message_ids
    elif set(map(type, records)) == {Record}:
        values, given_ids, headers, *unset = map(list, zip(*map(_COLUMNS_OF, records), strict=True))
        if headers.count(()) != count or any(column.count(None) != count for column in unset):
            return None
        ids = None if given_ids.count(None) == count else given_ids
    if set(map(type, values)) != _ONLY_BYTES or not (ids is None or (set(map(type, ids)) == _ONLY_BYTES and all(ids))):
        return None
    overhead = PLAIN_OVERHEAD_BYTES + len(key or b"")
    lengths = list(map(len, values) if ids is None else map(add, map(len, values), map(len, ids)))
    return PlainBulk(values, ids, sum(lengths) + overhead * count, max(lengths) + overhead)


def portions(records: Sequence[Record], settings: ProducerSettings) -> Iterator[Sequence[Record]]:
    """Divide records into bulks, each at most a quarter of the budget of a producer with these settings."""
    return split(records, lambda record: size_of(record, record.key, record.message_id), settings)


def split(items: Sequence[T], size: Callable[[T], int], settings: ProducerSettings) -> Iterator[Sequence[T]]:
    """Divide messages that wait for room in the budget, so that other messages also get room."""
    most, most_bytes = max(1, settings.budget_messages // BUDGET_SHARE), settings.budget_bytes // BUDGET_SHARE
    start = total = 0
    for index, item in enumerate(items):
        weight = size(item)
        if index > start and (index - start == most or total + weight > most_bytes):
            yield items[start:index]
            start, total = index, 0
        total += weight
    if items:
        yield items[start:]


def size_of(record: Record, key: bytes | None, own_id: bytes | None = None) -> int:
    """Return the size of a message in the budget and in a batch, in bytes."""
    size = PLAIN_OVERHEAD_BYTES + len(record.value or b"") + len(key or b"") + len(own_id or b"")
    return size + sum([_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in record.headers])


def as_list(records: Iterable[bytes | Record]) -> Sequence[bytes | Record]:
    """Return a copy, because another thread may change the caller's list."""
    if isinstance(records, IdentifiedRecords):
        return records[:]
    if isinstance(records, bytes | bytearray | str | Record):
        raise WrongType(f"publish takes a list, or another iterable, of records, not {type(records).__name__}")
    return list(records)


def _with_headers(record: Record, common: Headers, *, verbatim: bool) -> tuple[Record, bytes | None]:
    """Return the record with the bulk's headers before its own, and the caller's id, which may be given in a header.

    An empty id is ignored, because all messages with it would count as the same message. ``verbatim``: an id in a
    header remains there.
    """
    message_id = record.message_id
    check("message_id", message_id)
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


def check(name: str, given: object) -> None:
    """Raise `WrongType`, with a remedy, unless ``given`` has the type of this part of a message."""
    wanted, text = _TYPES[name]
    if isinstance(given, wanted):
        return
    remedy = ""
    if isinstance(given, str) and "bytes" in text:
        remedy = ": encode it (text.encode()), or write it with a serializer (dumps)"
    elif isinstance(given, bytes) and wanted is str:
        remedy = ": decode it (name.decode())"
    raise WrongType(f"{name} is {text}, not {type(given).__name__}{remedy}")


def _check_header(header: Any) -> None:
    check("a header", header)
    if len(header) != 2:
        raise WrongType(f"a header is a tuple of a name and a value, not of {len(header)} items")
    name, value = header
    check("the name of a header", name)
    check("the value of a header", value)
    if "\0" in name:
        raise WrongType("the name of a header must not contain a null character")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise WrongType("the name of a header must be text that UTF-8 can encode, without lone surrogates") from None
