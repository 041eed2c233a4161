# SPDX-License-Identifier: Apache-2.0
"""Transactions: messages and the offsets of their input are committed together or not at all."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from monasca_common.kafka.errors import (
    ClosedError,
    DeliveryAbandoned,
    FatalError,
    FencedError,
    MisuseError,
    RetriableError,
    StaleCommit,
    TransactionError,
    TransportError,
    WrongType,
)
from monasca_common.kafka.message import Batch, OffsetAndEpoch, Record, TopicPartition
from monasca_common.kafka.producer.outcome import DeliveryListener
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.table import DeliveryAttempt
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.producer_clients import ProducerClients

LOG = logging.getLogger(__name__)

Inputs = Batch | Mapping[TopicPartition, int | OffsetAndEpoch]


@runtime_checkable
class TransactionalConsumer(Protocol):
    """Declares the methods of `KafkaConsumer` that a transaction uses."""

    def next_offsets(self, what: Inputs) -> Mapping[TopicPartition, int]:
        """Return the next offsets. Raises `StaleCommit` if a partition was revoked since the messages were polled."""

    def group_metadata(self) -> Any: ...

    def seek_to_committed(self) -> object:
        """Read uncommitted messages again."""


class TransactionalProducer(Protocol):
    """Declares the methods of `KafkaProducer` that a transaction uses."""

    settings: ProducerSettings
    open_transaction: Callable[[], Transaction | None]

    def send(
        self, topic: str, record: bytes | Record, *, key: bytes | None, on_delivery: DeliveryListener | None
    ) -> bytes | None: ...

    def flush(self, timeout: float | None) -> DeliveryReport: ...


class Transaction:
    """A transaction, from `KafkaProducer.transaction`. The end of the block commits; an exception, an undelivered
    message or a partition revoked in the meantime aborts it, and consumers then return to their committed offsets.

    The end of the block raises `TransactionError` if the transaction was aborted although the block raised no
    exception, or if a consumer could not return to its offsets; `FencedError` if another process opened the same
    transactional id; and `FatalError` if it is unknown whether the transaction was committed. An unanswered abort is
    repeated at the start of the next transaction, which raises `TransactionError` if there is still no response.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        clients: ProducerClients,
        lock: AbstractContextManager[object],
        refuse_waiting: Callable[[], None],
        settle_all: Callable[[DeliveryAbandoned], None],
    ) -> None:
        """``refuse_waiting`` settles messages that wait for their topic's limit, ``settle_all`` all other messages."""
        self._producer = producer
        self._transport = clients.main
        self._tap = clients.tap
        self._lock = lock
        self._refuse_waiting = refuse_waiting
        self._settle_all = settle_all
        self._seconds = producer.settings.transaction_timeout_seconds
        self.reported: list[DeliveryAttempt] = []  # by any flush, because they were not delivered by then
        self._inputs: list[tuple[TransactionalConsumer, Inputs, bool]] = []  # whether an abort seeks back

    def send(
        self,
        topic: str,
        record: bytes | Record,
        *,
        key: bytes | None = None,
        on_delivery: DeliveryListener | None = None,
    ) -> bytes | None:
        """Send like `KafkaProducer.send`; readers of committed data see the message after the end of the block."""
        return self._producer.send(topic, record, key=key, on_delivery=on_delivery)

    def commit_offsets(self, consumer: TransactionalConsumer, inputs: Inputs, *, seek_back: bool = True) -> None:
        """Commit the offsets of a batch (or the given offsets) for ``consumer`` if the transaction commits. Call it
        first in the block: after an exception before this call, the consumer does not read the batch again.

        With ``seek_back=False``, it reads no aborted batch again, and the caller seeks. This is required if another
        thread polls it, because only that thread may seek. Raises `WrongType` for a consumer without transactions.
        """
        if not isinstance(consumer, TransactionalConsumer):
            raise WrongType(f"commit_offsets takes a KafkaConsumer of this library, not {type(consumer).__name__}")
        self._inputs.append((consumer, inputs, seek_back))

    def __enter__(self) -> Transaction:
        try:
            with self._lock:
                if self._producer.open_transaction() is not None:
                    raise MisuseError("another transaction of this producer is open: leave its block first")
                self._producer.open_transaction = weakref.ref(self)  # weak, as an interrupt can prevent `__exit__`
            if self._transport.abort_is_due:
                try:
                    self._end_aborted()
                    self._producer.flush(self._seconds)  # an interrupt may have prevented the one in `_abort`
                except RetriableError as late:
                    raise TransactionError(f"the abort of the previous transaction has not ended: {late}") from late
            self.reported = []  # without those of the previous transaction
            self._transport.abort_is_due = True  # this holds until the transaction has ended, even after an interrupt
            self._transport.begin_transaction()
            if self._tap is not None:
                self._tap.begin()
        except BaseException:
            if self._producer.open_transaction() is self:
                self._producer.open_transaction = lambda: None
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_trace: object) -> None:
        committed = False
        try:
            if error is not None:
                self._abort()
            else:
                self._commit_or_abort()
                committed = True
        finally:
            self._producer.open_transaction = lambda: None
            if self._tap is not None:
                self._tap.end(committed=committed)

    def _commit_or_abort(self) -> None:
        try:
            self._commit()
        except (FatalError, FencedError):
            raise
        except BaseException as failure:  # even after Ctrl-C, because an open transaction would hide later records
            self._abort()
            if isinstance(failure, StaleCommit | TransportError):
                raise TransactionError(f"the transaction was aborted: {failure}") from failure
            raise

    def _commit(self) -> None:
        report = self._producer.flush(self._seconds)
        report = report.with_attempts(dict(enumerate(dict.fromkeys(attempt.latest for attempt in self.reported))))
        undelivered = report.failed + report.unknown
        if undelivered:
            first = undelivered[0].error
            raise TransactionError(f"{len(undelivered)} messages were not delivered; the first: {first}", report)
        for consumer, inputs, _ in self._inputs:
            # Get the generation before the ownership check. If partitions are revoked in between, the generation is
            # old, and the broker refuses it. A generation that is read after the check could be the next generation,
            # and would commit offsets of partitions with new owners.
            generation = consumer.group_metadata()
            self._transport.send_offsets(consumer.next_offsets(inputs), generation, self._seconds)
        self._commit_until_answered()
        self._transport.abort_is_due = False

    def _commit_until_answered(self) -> None:
        """Commit; repeat a commit whose response is late, because it may already have taken effect."""
        clock = self._transport.clock
        deadline = clock.monotonic() + self._seconds
        asked_before = False
        while True:
            try:
                return self._transport.commit_transaction(max(0.1, deadline - clock.monotonic()))
            except RetriableError as late:
                asked_before = True
                if clock.monotonic() >= deadline:
                    raise FatalError(
                        f"no response to the commit of a transaction within {self._seconds} s: it is unknown whether "
                        "it was committed; close the producer and open it again, which ends the transaction either way"
                    ) from late
            except (ClosedError, FencedError) as end:
                if asked_before:
                    raise FatalError(
                        f"the commit of a transaction had no response before this error: {end}; it is unknown whether "
                        "it was committed: resume from the committed offsets"
                    ) from end
                raise

    def _abort(self) -> None:
        self.reported = []  # the next flush need not wait for them again
        try:
            # otherwise, the next flush would report these messages and abort the next transaction
            self._producer.flush(self._seconds)
            self._end_aborted()
        except RetriableError as late:
            LOG.warning("no response to the abort of a transaction; the next transaction repeats it: %s", late)
        finally:
            for consumer, _, seek_back in self._inputs:
                if seek_back:
                    self._send_back(consumer)

    def _end_aborted(self) -> None:
        self._refuse_waiting()  # otherwise, these messages would be sent later, in the next transaction
        try:
            self._transport.abort_transaction(self._seconds)
        except TransportError as error:
            if error.name != "_STATE":  # otherwise, an interrupted commit has already ended the transaction
                raise
        self._settle_all(DeliveryAbandoned("its transaction was aborted"))  # the next one sends it again if necessary
        self._transport.abort_is_due = False

    def _send_back(self, consumer: TransactionalConsumer) -> None:
        try:
            consumer.seek_to_committed()
        except RetriableError as unanswered:
            raise TransactionError(
                f"the transaction was aborted, and the committed offsets of its consumer are unknown: {unanswered}; "
                "call its seek_to_committed before its next poll"
            ) from unanswered
