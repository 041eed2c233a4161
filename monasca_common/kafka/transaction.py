# SPDX-License-Identifier: Apache-2.0
"""Transactions: what is sent and the offsets it came from become visible together, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from monasca_common.kafka.delivery import DeliveryListener
from monasca_common.kafka.errors import (
    FatalError,
    FencedError,
    RetriableError,
    StaleCommit,
    TransactionError,
    TransportError,
)
from monasca_common.kafka.message import Batch, Record, TopicPartition
from monasca_common.kafka.offsets import Progress
from monasca_common.kafka.transport.base import ProducerTransport

if TYPE_CHECKING:
    from monasca_common.kafka.producer import KafkaProducer


LOG = logging.getLogger(__name__)

Inputs = Batch | Mapping[TopicPartition, Progress]


class TransactionalConsumer(Protocol):
    """What a transaction asks of a consumer: `KafkaConsumer` has it."""

    def next_offsets(self, what: Inputs) -> Mapping[TopicPartition, int]:
        """Raises `StaleCommit` if a partition was revoked since the messages were polled."""
        ...

    def group_metadata(self) -> Any: ...

    def seek_to_committed(self) -> object:
        """Read again what was not committed."""
        ...


class Transaction:
    """Made by `KafkaProducer.transaction`. Leaving the block commits; an exception, an undelivered message or a
    partition that was revoked meanwhile aborts, and then every consumer goes back to what it had committed.

    Leaving raises `TransactionError` where it was aborted without an exception of the block's own, or a consumer could
    not go back; `FencedError` where another process opened the same transactional id. An abort that has no answer is
    asked for again as the next one is entered, which raises `TransactionError` if there still is none.
    """

    def __init__(self, producer: KafkaProducer, transport: ProducerTransport) -> None:
        self._producer = producer
        self._transport = transport
        self._seconds = producer.settings.transaction_timeout_seconds
        self._inputs: list[tuple[TransactionalConsumer, Inputs]] = []

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

    def commit_offsets(self, consumer: TransactionalConsumer, inputs: Inputs) -> None:
        """All of a batch (or this much progress) counts as read by ``consumer`` if the transaction commits."""
        self._inputs.append((consumer, inputs))

    def __enter__(self) -> Transaction:
        if self._producer.abort_is_due:
            try:
                self._end_aborted()
            except RetriableError as late:
                raise TransactionError(f"the transaction before, which was aborted, has not ended: {late}") from late
        self._transport.begin_transaction()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._commit()
        except (FencedError, FatalError):
            raise
        except (StaleCommit, TransportError) as failure:
            self._abort()
            raise TransactionError(f"the transaction was aborted: {failure}") from failure
        except BaseException:  # Ctrl-C and a consumer that was closed included: left open, it would hide later records
            self._abort()
            raise

    def _commit(self) -> None:
        report = self._producer.flush(self._seconds)
        if not report.ok:
            first = (report.failed + report.unknown)[0]
            raise TransactionError(
                f"{len(report.failed + report.unknown)} messages of the transaction were not delivered; "
                f"the first: {first.error}"
            )
        for consumer, inputs in self._inputs:
            self._transport.send_offsets(consumer.next_offsets(inputs), consumer.group_metadata(), self._seconds)
        self._commit_until_answered()

    def _commit_until_answered(self) -> None:
        """A commit whose answer is late must be asked for again: it may already have happened."""
        clock = self._transport.clock
        deadline = clock.monotonic() + self._seconds
        while True:
            try:
                return self._transport.commit_transaction(max(0.1, deadline - clock.monotonic()))
            except RetriableError as late:
                if clock.monotonic() >= deadline:
                    raise FatalError(
                        f"no answer to the commit of a transaction within {self._seconds} s: whether it happened is "
                        "unknown; close the producer and open it again, which ends the transaction either way"
                    ) from late

    def _abort(self) -> None:
        try:
            # What still waits for its topic's limit would be handed over later, into the next transaction.
            self._producer.flush(self._seconds)
            self._end_aborted()
        except RetriableError as late:
            LOG.warning("the abort of a transaction has no answer yet, the next one will ask again: %s", late)
        finally:
            for consumer, _ in self._inputs:
                self._send_back(consumer)

    def _end_aborted(self) -> None:
        self._producer.abort_is_due = True
        self._transport.abort_transaction(self._seconds)
        self._producer.abort_is_due = False

    def _send_back(self, consumer: TransactionalConsumer) -> None:
        try:
            consumer.seek_to_committed()
        except RetriableError as unanswered:
            raise TransactionError(
                f"the transaction was aborted, and what its consumer had committed is not known: {unanswered}; call "
                "its seek_to_committed before its next poll"
            ) from unanswered
