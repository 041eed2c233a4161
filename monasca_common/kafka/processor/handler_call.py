# SPDX-License-Identifier: Apache-2.0
"""Calls a user's handler once: decodes values before the call, assigns ids to outputs after it, and returns errors. The
ids of outputs depend only on their input, so that a repeated call after a crash writes the same ids.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from monasca_common.kafka.errors import MessagingError, MisuseError, RetryLater, SerializationError
from monasca_common.kafka.message import LazyColumns, PartitionBatch, Record
from monasca_common.kafka.serialization.base import SerializationContext, Serializer, takes_context


class Output(NamedTuple):
    """One record for ``topic``. A bare ``(topic, record)`` is an output without a source.

    ``source``: the position in the batch of the message from which the record derives. With a source (and always in a
    handler of single messages), a repeated output gets the same id even if the messages are batched differently.
    """

    topic: str
    record: Record | bytes
    source: int | None = None


Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """The result: outputs by topic of the first ``handled`` messages, and ``error`` of the next ``failed`` messages."""

    handled: int
    outputs: dict[str, list[Record]] = field(default_factory=dict)
    failed: int = 0
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Calls ``handler`` with a batch, or with its messages one by one.

    Raises `MisuseError` for an invalid return value instead of returning it as a handler's error, because otherwise
    every message would become a dead letter. A handler's exceptions are returned if they derive from `Exception`.
    """

    handler: Handler
    serializer: Serializer | None
    group: str
    per_message: bool

    @property
    def is_async(self) -> bool:
        """Whether the handler is an ``async def``, or an object whose ``__call__`` is one."""
        return any(map(inspect.iscoroutinefunction, (self.handler, type(self.handler).__call__)))

    def call(self, part: PartitionBatch, interrupted: Callable[[], bool]) -> Call:
        """Call the handler. ``interrupted``: called between single messages; if it returns true, the remaining messages
        are not handled."""
        try:
            decoded = decode(part, self.serializer)
        except (Undecodable, RetryLater) as error:
            return Call(0, failed=len(part), error=error)
        try:
            self.handle(decoded, interrupted).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("only an async def can wait")

    async def handle(self, part: PartitionBatch[Any], interrupted: Callable[[], bool]) -> Call:
        """Call the handler with decoded messages, and await it if it is an ``async def``."""
        outputs: list[Output] = []
        handled, failure, is_async = 0, None, self.is_async
        size = 1 if self.per_message else len(part)  # messages in each call
        for argument in part if self.per_message else (part,):
            if self.per_message and interrupted():
                break
            try:
                returned = self.handler(argument)
                if is_async:
                    returned = await returned
                # The body of a generator belongs to the handler, so its exceptions must be caught in the same place.
                returned = list(returned) if isinstance(returned, Iterator) else returned
            except Exception as error:
                failure = error
                break
            found = collect(returned)
            outputs += [output._replace(source=handled) for output in found] if self.per_message else found
            handled += size
        try:
            return Call(handled, identify(outputs, part, self.group), 0 if failure is None else size, failure)
        finally:
            del failure  # because its traceback would keep this frame, and the batch's data, alive


class Undecodable(Exception):
    """Some values of a batch cannot be decoded; ``errors`` maps their positions to errors."""

    def __init__(self, errors: dict[int, SerializationError]) -> None:
        super().__init__(f"{len(errors)} values cannot be decoded")
        self.errors = errors


def decode(part: PartitionBatch, serializer: Serializer | None) -> PartitionBatch[Any]:
    """Return the batch with decoded values; ``None`` remains ``None``. Raises `Undecodable`, or the serializer's
    `RetryLater` or `MessagingError`; in each case, the handler is not called."""
    if serializer is None:
        return part
    values: list[Any] = []
    errors: dict[int, SerializationError] = {}
    loads: Callable[..., Any] = serializer.loads
    topic = part.topic_partition.topic
    with_context = takes_context(type(serializer).loads)
    for index, value in enumerate(part.values):
        try:
            context = (SerializationContext(topic, "value", part.headers[index]),) if with_context else ()
            values.append(None if value is None else loads(value, *context))
        except SerializationError as error:
            errors[index] = error
        except (MessagingError, RetryLater):
            raise
        except Exception as error:  # its text may quote the value
            errors[index] = SerializationError(f"the serializer raised {type(error).__name__}")
    if errors:
        raise Undecodable(errors)
    encoded = part._columns
    decoded = LazyColumns(len(values), lambda name: values if name == "values" else encoded.column(name))
    return PartitionBatch(part.topic_partition, part.epoch, decoded, part.start_offset, part.next_offset)


def collect(returned: Any) -> list[Output]:
    """Return the outputs in a handler's result: none, or an iterable of `Output` or ``(topic, record)``."""
    if returned is None:
        return []
    if inspect.iscoroutine(returned):
        returned.close()  # otherwise, Python would warn that the coroutine was never awaited
    if isinstance(returned, str | bytes | Record) or not isinstance(returned, Iterable):
        raise MisuseError(
            f"a handler returned {type(returned).__name__}: return None, or an iterable of (topic, record)"
        )
    return [_output(item) for item in returned]


def _output(item: Any) -> Output:
    is_tuple = isinstance(item, tuple)
    if is_tuple and len(item) in (2, 3) and isinstance(item[0], str) and isinstance(item[1], Record | bytes):
        return Output(*item)
    found = f"({', '.join(type(part).__name__ for part in item)})" if is_tuple else type(item).__name__
    raise MisuseError(f"a handler returned the output {found}: return (str, Record or bytes) tuples")


def identify(outputs: list[Output], part: PartitionBatch, group: str) -> dict[str, list[Record]]:
    """Return the records by topic. Each record has a message id that depends only on its input, unless it already had
    an id.

    With a source: ``group/topic/partition/offset/n``, the n-th output of that message. Without a source, if there are
    as many outputs as messages, the n-th output is assigned to the n-th message. Such an id also contains a digest of
    the content, because after a wrong assignment, two different records could have the same id, and one would be lost.
    If there are more or fewer outputs, the id has the first and last offset of the batch.
    """
    name, number = part.topic_partition
    origin = f"{group}/{name}/{number}"
    offsets = part.offsets
    one_to_one = len(outputs) == len(offsets)
    numbers: Counter[str] = Counter()
    records: dict[str, list[Record]] = {}
    for position, (topic, item, source) in enumerate(outputs):
        record = item if isinstance(item, Record) else Record(item)
        if not record.message_id:
            if source is not None:
                if not 0 <= source < len(offsets):
                    raise MisuseError(
                        f"an output names source {source} of a batch of {len(offsets)}: positions start at 0"
                    )
                anchor = f"{origin}/{offsets[source]}"
            elif one_to_one:
                anchor = f"{origin}/{offsets[position]}/{_digest(topic, record)}"
            else:
                anchor = f"{origin}/{offsets[0]}-{offsets[-1]}"
            record = replace(record, message_id=f"{anchor}/{numbers[anchor]}".encode())
            numbers[anchor] += 1
        records.setdefault(topic, []).append(record)
    return records


def _digest(topic: str, record: Record) -> str:
    content = repr((topic, record.key, record.value, record.headers))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
