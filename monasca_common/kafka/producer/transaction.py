# SPDX-License-Identifier: Apache-2.0
"""Transactions: what is sent and the offsets it came from become visible together, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from monasca_common.kafka.errors import (
    ClosedError,
    FatalError,
    FencedError,
    RetriableError,
    StaleCommit,
    TransactionError,
    TransportError,
)
from monasca_common.kafka.message import Batch, OffsetAndEpoch, Record, TopicPartition
from monasca_common.kafka.producer.outcome import DeliveryListener
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.topic_limits import TopicLimits
from monasca_common.kafka.settings import ProducerSettings

LOG = logging.getLogger(__name__)

_NO_TRANSACTION = "_STATE"  # an abort is refused: none is open, because the commit that was interrupted has ended it

Inputs = Batch | Mapping[TopicPartition, int | OffsetAndEpoch]


class TransactionalConsumer(Protocol):
    """The part of a consumer that a transaction uses; `KafkaConsumer` has it."""

    def next_offsets(self, what: Inputs) -> Mapping[TopicPartition, int]:
        """Raises `StaleCommit` if a partition was revoked since the messages were polled."""
        ...

    def group_metadata(self) -> Any: ...

    def seek_to_committed(self) -> object:
        """Read again what was not committed."""
        ...


class TransactionalProducer(Protocol):
    """The part of a producer that a transaction uses; `KafkaProducer` has it."""

    settings: ProducerSettings
    open_transaction: Transaction | None

    def send(
        self, topic: str, record: bytes | Record, *, key: bytes | None, on_delivery: DeliveryListener | None
    ) -> bytes | None: ...

    def flush(self, timeout: float | None) -> DeliveryReport: ...


class Transaction:
    """A transaction, from `KafkaProducer.transaction`. Leaving the block commits; an exception, an undelivered message
    or a partition that was revoked meanwhile aborts, and then every consumer goes back to what it had committed (see
    `commit_offsets`).

    Leaving raises `TransactionError` where it was aborted without an exception of the block's own, or a consumer could
    not go back; `FencedError` where another process opened the same transactional id; `FatalError` where nobody knows
    whether it was committed. An abort that has no answer is asked for again as the next one is entered, which raises
    `TransactionError` if there still is none.
    """

    def __init__(self, producer: TransactionalProducer, limits: TopicLimits) -> None:
        self._producer = producer
        self._limits = limits
        self._tap = limits.tap
        self._transport = limits.main
        self._seconds = producer.settings.transaction_timeout_seconds
        self._inputs: list[tuple[TransactionalConsumer, Inputs]] = []
        self._seeking: list[TransactionalConsumer] = []  # after an abort

    def send(
        self,
        topic: str,
        record: bytes | Record,
        *,
        key: bytes | None = None,
        on_delivery: DeliveryListener | None = None,
    ) -> bytes | None:
        """As `KafkaProducer.send`; readers of committed data see it once the block has been left."""
        return self._producer.send(topic, record, key=key, on_delivery=on_delivery)

    def commit_offsets(self, consumer: TransactionalConsumer, inputs: Inputs, *, seek_back: bool = True) -> None:
        """All of a batch (or this much progress) counts as read by ``consumer`` if the transaction commits.

        With ``seek_back=False`` an abort leaves the position of ``consumer`` unchanged, and the caller seeks: required
        where another thread polls the consumer, because only that thread may seek.
        """
        self._inputs.append((consumer, inputs))
        if seek_back:
            self._seeking.append(consumer)

    def __enter__(self) -> Transaction:
        if self._transport.abort_is_due:
            try:
                self._limits.refuse_waiting()  # perhaps an interrupt came before this and the flush in `_abort`
                self._end_aborted()
                self._producer.flush(self._seconds)
            except RetriableError as late:
                raise TransactionError(f"the transaction before, which was aborted, has not ended: {late}") from late
        self._transport.abort_is_due = True  # until it has ended, whatever interrupts that
        self._transport.begin_transaction()
        if self._tap is not None:
            self._tap.begin()
        self._producer.open_transaction = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        committed = False
        try:
            if error is not None:
                self._abort()
            else:
                self._commit_or_abort()
                committed = True
        finally:
            self._producer.open_transaction = None
            if self._tap is not None:
                self._tap.end(committed=committed)

    def _commit_or_abort(self) -> None:
        try:
            self._commit()
        except (FatalError, FencedError):
            raise
        except BaseException as failure:  # Ctrl-C included: left open, it would hide later records
            self._abort()
            if isinstance(failure, StaleCommit | TransportError):
                raise TransactionError(f"the transaction was aborted: {failure}") from failure
            raise

    def _commit(self) -> None:
        report = self._producer.flush(self._seconds)
        undelivered = report.failed + report.unknown
        if undelivered:
            raise TransactionError(
                f"{len(undelivered)} messages of the transaction were not delivered; the first: {undelivered[0].error}",
                report,
            )
        for consumer, inputs in self._inputs:
            # The generation first: what is taken away after this carries an old one, and the broker refuses it. Asked
            # for after the ownership was checked, it could be the next one, and commit what others own by then.
            generation = consumer.group_metadata()
            self._transport.send_offsets(consumer.next_offsets(inputs), generation, self._seconds)
        self._commit_until_answered()
        self._transport.abort_is_due = False

    def _commit_until_answered(self) -> None:
        """A commit whose answer is late must be asked for again: it may already have happened."""
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
                        f"no answer to the commit of a transaction within {self._seconds} s: whether it happened is "
                        "unknown; close the producer and open it again, which ends the transaction either way"
                    ) from late
            except (ClosedError, FencedError) as end:
                if asked_before:
                    raise FatalError(
                        f"the commit of a transaction had no answer before this error: {end}; whether it happened is "
                        "unknown: read on from what is committed"
                    ) from end
                raise

    def _abort(self) -> None:
        try:
            self._producer.flush(self._seconds)  # or the next one's would report these, and abort that
            self._limits.refuse_waiting()  # or they would be handed over later, into the next transaction
            self._end_aborted()
        except RetriableError as late:
            LOG.warning("the abort of a transaction has no answer yet, the next one will ask again: %s", late)
        finally:
            for consumer in self._seeking:
                self._send_back(consumer)

    def _end_aborted(self) -> None:
        try:
            self._transport.abort_transaction(self._seconds)
        except TransportError as error:
            if error.name != _NO_TRANSACTION:
                raise
        self._transport.abort_is_due = False

    def _send_back(self, consumer: TransactionalConsumer) -> None:
        try:
            consumer.seek_to_committed()
        except RetriableError as unanswered:
            raise TransactionError(
                f"the transaction was aborted, and what its consumer had committed is not known: {unanswered}; call "
                "its seek_to_committed before its next poll"
            ) from unanswered
