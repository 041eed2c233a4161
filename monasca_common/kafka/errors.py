# SPDX-License-Identifier: Apache-2.0
"""Every error that this library raises or reports.

::

    MessagingError
    ├── ConfigurationError          a setting is missing, unknown, out of bounds or unsafe
    ├── MisuseError                 the caller's mistake: the only errors that `publish` raises
    │   ├── ClosedError             used after close
    │   ├── ForkedError             used in a child of the process that opened it
    │   ├── WrongType               a topic, key or message of the wrong type
    │   └── InCallbackError         a blocking call in a callback or signal handler, which would wait for itself
    ├── DeliveryError               why one message is not delivered (in `Delivery.error`)
    │   ├── QueueFull               the budget was exhausted until the deadline
    │   ├── MessageTooLarge         larger than the topic accepts; never sent
    │   │   └── LargerThanBudget    larger than the producer's whole budget; never sent (also a QueueFull)
    │   ├── DeliveryTimeout         still in flight at the caller's deadline
    │   ├── DeliveryAbandoned       purged, or left in flight by a close
    │   └── DeliveryRefused         the client or the broker refused it (see `cause`)
    ├── UndeliveredError            raised by `DeliveryReport.raise_for_undelivered`
    ├── TransportError              an error from the client library or the broker
    │   ├── RetriableError          the same call may succeed later
    │   ├── AuthenticationError     the credentials were refused
    │   ├── AuthorizationError      the principal lacks a permission
    │   ├── FencedError             a newer client has this identity; this client cannot continue
    │   └── FatalError              this client cannot continue; open another
    ├── ConsumerError
    │   ├── OffsetOutOfRange        the position is no longer (or not yet) in the log
    │   ├── TopicRecreated          the topic was deleted and recreated while it was read
    │   ├── StaleCommit             the partition was revoked since the messages were polled
    │   └── CommitUnknown           no response to a commit in time; uncommitted messages are read again
    ├── TransactionError            the transaction was aborted; its inputs are read again
    ├── SerializationError          a value cannot be decoded or encoded
    │   └── SchemaRefused           the schema registry refused a schema, or does not have it
    ├── HandlerError                a handler ended the loop (its exception is the cause)
    └── DeadLetterLimit             too many dead letters; the message over the limit is not committed

    RetryLater, Poison, ReadFrom    raised *by* handlers to decide what happens to a batch
    └── RegistryUnavailable         raised by serializers if the schema registry does not respond
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monasca_common.kafka.message import TopicPartition


class MessagingError(Exception):
    """Base class of this library's errors."""


class ConfigurationError(MessagingError):
    """A setting is missing, unknown, out of bounds, or contradicts a guarantee."""


class MisuseError(MessagingError):
    """The call can never work: a mistake in the calling program."""


class ClosedError(MisuseError):
    """The producer or consumer was closed."""


class ForkedError(MisuseError):
    """The producer or consumer was opened by the parent of this process."""


class InCallbackError(MisuseError):
    """A blocking call in a delivery callback, or in a signal handler that interrupts a call to the producer."""


class WrongType(MisuseError, TypeError):
    """An argument has the wrong type; the call had no effect."""


class DeliveryError(MessagingError):
    """The reason why one message is not delivered.

    ``permanent``: the same message would be refused again, so `KafkaProducer.retry` does not send it.
    """

    permanent = False


class QueueFull(DeliveryError):
    """The budget of messages or bytes in flight was exhausted until the deadline."""


class MessageTooLarge(DeliveryError):
    """The message is larger than its topic accepts; it was not sent."""

    permanent = True
    _rule = (
        "a message of {size} bytes is over the limit of {limit} bytes of topic {topic!r}: "
        "make it smaller or raise the topic's max.message.bytes"
    )

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(self._rule.format(topic=topic, size=size, limit=limit))
        self.topic = topic
        self.size = size
        self.limit = limit


class LargerThanBudget(MessageTooLarge, QueueFull):
    """The message is larger than the producer's whole budget, so it would wait indefinitely; it was not sent."""

    _rule = (
        "a message of {size} bytes for topic {topic!r} is over the producer's budget of {limit} bytes: "
        "make it smaller or raise budget_bytes in group [kafka]"
    )


class DeliveryTimeout(DeliveryError):
    """The broker did not respond before the caller's deadline; the message is still in flight."""


class DeliveryAbandoned(DeliveryError):
    """The producer abandoned the message; it is unknown whether the log contains it."""


class DeliveryRefused(DeliveryError):
    """The client library or the broker refused the message.

    ``cause`` is the underlying `TransportError`.
    """

    def __init__(self, cause: TransportError, *, permanent: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one message. ``index``: its position in the bulk, 0 for a `KafkaProducer.send`.

    ``partition`` and ``offset`` are known once it is delivered (``offset`` may remain ``None`` even then);
    ``error`` is the reason why it is not delivered.
    """

    index: int
    message_id: bytes | None
    topic: str
    partition: int | None
    offset: int | None
    error: DeliveryError | None


class UndeliveredReport(Protocol):
    """The report of an `UndeliveredError`: a `DeliveryReport`."""

    @property
    def delivered_count(self) -> int: ...

    @property
    def failed(self) -> tuple[Delivery, ...]: ...

    @property
    def unknown(self) -> tuple[Delivery, ...]: ...

    @property
    def ok(self) -> bool: ...

    @property
    def retriable(self) -> bool: ...


class UndeliveredError(MessagingError):
    """Some messages are not delivered. ``report`` has the outcome of each message, and can be passed to
    `KafkaProducer.retry`. The error text contains the error of the first undelivered message."""

    def __init__(self, report: UndeliveredReport) -> None:
        counts = f"{report.delivered_count} delivered, {len(report.failed)} failed, {len(report.unknown)} unknown"
        reason = next((each.error for each in (*report.failed, *report.unknown) if each.error), None)
        super().__init__(counts if reason is None else f"{counts}: {reason}")
        self.report = report


class TransportError(MessagingError):
    """An error from the client library or the broker.

    ``code`` is Kafka's error code (negative for librdkafka's own errors, otherwise from a broker), and ``name`` is its
    name. ``fatal``: the client can no longer be used.
    """

    def __init__(self, message: str, *, code: int = -1, name: str = "_FAIL", fatal: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.fatal = fatal


class RetriableError(TransportError):
    """A temporary error: the same call may succeed later."""


class AuthenticationError(TransportError):
    """The broker refused the credentials."""


class AuthorizationError(TransportError):
    """The principal lacks a permission; a retry fails until the ACLs change."""


class FencedError(TransportError):
    """Another client with the same identity took over; this client cannot continue."""


class FatalError(TransportError):
    """This client cannot continue; close it and open another."""


class ConsumerError(MessagingError):
    """An error of a consumer's partition, topic or commit."""


class OffsetOutOfRange(ConsumerError):
    """The position of a partition is not in the log: retention deleted the records, or they never existed.

    The partition delivers nothing until `KafkaConsumer.seek` gives it a position.
    """

    def __init__(self, partition: TopicPartition, offset: int | None, reason: str = "deleted by retention?") -> None:
        super().__init__(
            f"offset {offset} of {partition.topic}/{partition.partition} is not in the log ({reason}): seek to a valid "
            "offset, or set the group's offset with `monasca-common offsets reset`"
        )
        self.partition = partition
        self.offset = offset


class TopicRecreated(ConsumerError):
    """A topic was deleted and recreated; offsets in the old topic are meaningless in the new one."""

    def __init__(self, topic: str, old_id: str, new_id: str) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and recreated (id {old_id} is now {new_id}): stop the readers, "
            "run `monasca-common offsets reset`, and start again"
        )
        self.topic = topic
        self.old_id = old_id
        self.new_id = new_id


class StaleCommit(ConsumerError):
    """The commit came from an assignment that has ended; it was not sent."""


class CommitUnknown(ConsumerError):
    """The commit got no response within its time budget; if the broker has not stored it, messages are read again."""


class TransactionError(MessagingError):
    """The transaction was aborted; none of its messages is visible, and its inputs are read again.

    ``report``: the outcomes of its messages if it was aborted because some were not delivered.
    """

    def __init__(self, message: str, report: UndeliveredReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class SerializationError(MessagingError):
    """A value cannot be encoded, or bytes cannot be decoded; the text never quotes the payload."""


class SchemaRefused(SerializationError):
    """The schema registry refused a schema, or does not have it. ``code``: the registry's error code, such as 409
    (incompatible), 422 (invalid) or 40403 (no such schema)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class HandlerError(MessagingError):
    """A handler ended the loop; its exception is the ``__cause__``."""


class DeadLetterLimit(MessagingError):
    """More messages failed than the limit allows. The message over the limit was neither dead-lettered nor
    committed."""


class RetryLater(Exception):
    """Raised by a handler or a serializer: a dependency is unavailable. The batch is handled again later, without limit
    and without dead letters.

    ``after``: seconds to wait, or ``None`` for the back-off of the retry policy.
    """

    def __init__(self, after: float | None = None) -> None:
        if after is not None and not (isinstance(after, int | float) and 0 <= after < math.inf):
            raise WrongType(f"after: RetryLater takes seconds (0 or more), or None, not {after!r}")
        super().__init__(
            "a dependency is unavailable"
            if after is None
            else f"a dependency is unavailable; next attempt in {after} s"
        )
        self.after = after


class RegistryUnavailable(RetryLater):
    """Raised by a serializer if the schema registry does not respond, or does not know a new schema yet."""

    def __init__(self, text: str, after: float) -> None:
        super().__init__(after)
        self.args = (text,)


class Poison(Exception):
    """Raised by a handler: these messages can never be handled. They become dead letters immediately; the handler
    receives the other messages again.

    ``indices``: positions in the handler's batch, or ``None`` for the whole batch. ``reasons``: maps each position to
    its own reason, and replaces ``indices``.
    """

    def __init__(
        self, reason: str, indices: Sequence[int] | None = None, *, reasons: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reasons = dict(reasons or {})
        chosen = self.reasons if reasons is not None else indices
        self.indices = None if chosen is None else tuple(chosen)

    def at(self, index: int) -> Poison:
        """Return the error of the message at ``index``."""
        return Poison(self.reasons[index]) if index in self.reasons else self


class ReadFrom(Exception):
    """Raised by a handler to read this partition again from ``offset``, for example because the offset that its
    database stores is lower. Messages of the partition in memory are read again; no message counts as failed."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"read again from offset {offset}")
        self.offset = offset
