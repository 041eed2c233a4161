# SPDX-License-Identifier: Apache-2.0
"""Adapts clients that accept and report messages one by one to the interface for many messages."""

from __future__ import annotations

from collections import Counter, deque
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import MESSAGE_ID_HEADER, Message
from monasca_common.kafka.transport.base import (
    ANY_PARTITION,
    Outcomes,
    ProducerTransport,
    UndeliveredMessage,
    message_id,
)
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.reservation import Reservation

T = TypeVar("T")
_by_sequence = itemgetter(0)


class ReportColumns:
    """Collects the reports of one client until `take`."""

    def __init__(self) -> None:
        self.bucket_ms: int | None = None  # length of the time buckets that it counts by
        # Other threads add to these while `take` removes from them.
        self._delivered: deque[tuple[int, int, int, int]] = deque()
        self._undelivered: deque[UndeliveredMessage] = deque()
        self._counted: deque[tuple[str, int]] = deque()

    def report(self, sequence: int, error: Any, message: Any) -> None:
        """Collect confluent-kafka's report of a message; ``sequence`` is first, so that a callback can be bound to it.
        The offset is ``None`` for a message that the broker already had."""
        if error is not None:
            self.give_back(sequence, error, message.value(), message.key())
            return
        offset = message.offset()
        size = len(message) + len(message.key() or b"")
        self._delivered.append((sequence, message.partition(), -1 if offset is None else offset, size))
        if self.bucket_ms is not None:
            self._count(message.topic(), message.timestamp()[1], self.bucket_ms)

    def deliver(self, sequence: int, message: Message) -> None:
        """Collect a delivered message."""
        size = len(message.value or b"") + len(message.key or b"")
        self._delivered.append((sequence, message.partition, message.offset, size))
        if self.bucket_ms is not None:
            self._count(message.topic, message.timestamp_ms or 0, self.bucket_ms)

    def give_back(self, sequence: int, error: Any, value: bytes | None, key: bytes | None) -> None:
        """Collect an undelivered message."""
        self._undelivered.append(UndeliveredMessage(sequence, translate(error), value, key))

    def send(
        self, client: ProducerTransport, topic: str, value: bytes, key: bytes | None, reservation: Reservation
    ) -> bytes | None:
        """Implement `ProducerTransport.send` with `produce_record`. Refused messages are reported as undelivered."""
        size = len(value) + len(key or b"") + reservation.overhead
        sequence, given_id = -1, b""
        try:
            with reservation.lock:
                if reservation.next == reservation.end or size > reservation.left or size > reservation.largest:
                    return None
                sequence = reservation.next  # no call before all are set, so no signal handler interrupts
                reservation.next = sequence + 1
                reservation.left -= size
            headers: tuple[tuple[str, bytes], ...] = ()
            if reservation.id_prefix is not None:
                given_id = message_id(reservation.id_prefix, sequence)
                headers = ((MESSAGE_ID_HEADER, given_id),)
            refusal: Exception | None = None
            try:
                client.produce_record(topic, value, key, ANY_PARTITION, 0, headers, sequence)
            except client.refusals as error:
                refusal = error
            if refusal is not None:
                refused = UndeliveredMessage(sequence, client.fault(refusal), value, key, taken=False)
                self._undelivered.append(refused)  # created first, because `take` can run concurrently
        except BaseException:
            if sequence >= 0:
                cause = TransportError("the call that sent it was interrupted")
                self._undelivered.append(UndeliveredMessage(sequence, cause, value, key, taken=None))
            raise
        return given_id

    def take(self) -> Outcomes:
        """Return the reports since the last call."""
        delivered = _drained(self._delivered)
        undelivered = _drained(self._undelivered)
        counts = Counter(_drained(self._counted))
        if not delivered:
            return Outcomes(undelivered=undelivered, counts=counts)
        delivered.sort(key=_by_sequence)
        sequences, partitions, offsets, sizes = zip(*delivered, strict=True)
        return Outcomes(sequences, partitions, offsets, list(accumulate(sizes)), undelivered, counts)

    def _count(self, topic: str, time_ms: int, bucket_ms: int) -> None:
        self._counted.append((topic, time_ms // bucket_ms * bucket_ms))


def _drained(items: deque[T]) -> list[T]:
    return [items.popleft() for _ in range(len(items))]
