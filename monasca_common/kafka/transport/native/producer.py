# SPDX-License-Identifier: Apache-2.0
"""Producing through librdkafka, without confluent-kafka's objects and calls for each message."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import DeliveryCounts
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import Outcomes, UndeliveredMessage
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import producer_options
from monasca_common.kafka.transport.librdkafka_producer import LibrdkafkaProducer
from monasca_common.kafka.transport.native import _librdkafka
from monasca_common.kafka.transport.native.client import ClientEvents, milliseconds, open_client

LOG = logging.getLogger(__name__)

_SEQUENCE, _OFFSET, _SIZE, _PARTITION, _NUMBERS = range(5)  # fields of a delivered message


class NativeReservation(ctypes.Structure):
    """Like `Reservation`, but in memory that `send` reads with the GIL held. Its attributes are read without a Python
    call, so no signal handler interrupts a read."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("next", "end", "left", "largest", "overhead", "prefix_size")),
        ("prefix", ctypes.c_char * 64),
    )

    def __init__(
        self, first: int, end: int, left: int, largest: int, overhead: int, id_prefix: bytes | None, /
    ) -> None:
        prefix = b"" if id_prefix is None else id_prefix
        super().__init__(first, end, left, largest, overhead, len(prefix), prefix)

    def close(self) -> None:
        """End the reservation: no more messages use it."""
        self.end = self.next


class NativeProducer(LibrdkafkaProducer):
    driver = "native"
    refusals = (_librdkafka.Error,)
    send_is_atomic = True
    new_reservation = NativeReservation  # type: ignore[assignment]

    def __init__(
        self, settings: ProducerSettings, batch_bytes: int, on_error: Callable[[TransportError], None]
    ) -> None:
        """Open the client, for settings that it supports (`native_can`)."""
        super().__init__(settings.connection)
        self.clock: Clock = SystemClock()
        self._on_error = on_error
        self._notices = ClientEvents(LOG, self.clock, settings.connection)
        options = {**producer_options(settings), "batch.size": batch_bytes}
        self._client = open_client("producer_options", options, _librdkafka.Producer)
        # the producer calls C without a Python frame in between
        self.send = self._client.send  # type: ignore[assignment, method-assign]
        self.produce = self._client.produce  # type: ignore[assignment, method-assign]

    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Any) -> bytes | None:
        return self._client.send(topic, value, key, reservation)

    def produce_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
        sequence: int,
    ) -> None:
        self._client.produce(topic, [value], key, sequence, None, partition, timestamp_ms, headers)

    def fault(self, error: Any) -> TransportError:
        return translate(KafkaError(*error.args) if isinstance(error, _librdkafka.Error) else error)

    def poll(self, timeout: float) -> Outcomes:
        client, deadline = self._client, self.clock.monotonic() + timeout
        while True:
            collected = client.poll(milliseconds(timeout))
            timeout = deadline - self.clock.monotonic()
            if collected is not None or timeout <= 0:
                return self._outcomes(collected)

    def flush(self, timeout: float) -> Outcomes:
        return self._outcomes(self._client.flush(milliseconds(timeout)))

    def queued(self) -> int:
        return self._client.queued

    def count(self, bucket_seconds: int) -> None:
        self._client.bucket_ms = bucket_seconds * 1000

    def purge(self) -> None:
        self._client.purge()

    def _outcomes(self, collected: _librdkafka.Outcomes | None) -> Outcomes:
        is_delivered = collected is not None and len(collected[0]) > 0
        self._notices.reconnect(self._client, heard=is_delivered or not self._client.queued)
        if collected is None:
            return Outcomes()
        delivered, counts, undelivered, notices = collected
        numbers = memoryview(delivered).cast("q")
        outcomes = Outcomes(
            numbers[_SEQUENCE::_NUMBERS],
            numbers[_PARTITION::_NUMBERS],
            numbers[_OFFSET::_NUMBERS],
            numbers[_SIZE::_NUMBERS],
            [
                UndeliveredMessage(sequence, translate(KafkaError(code, text)), value, key)
                for _, code, text, _, _, sequence, value, key in undelivered
            ],
            _added_up(counts),
        )
        self._notices.handle(notices, self._on_error)
        return outcomes

    def close(self, timeout: float) -> None:
        """Destroy the client once no call uses it; this waits for the client's threads without a limit."""
        self._admin = None
        self._client.close()
        del self._client, self.send, self.produce  # remove the references to it


def _added_up(counts: list[_librdkafka.Notice]) -> DeliveryCounts:
    total: DeliveryCounts = {}
    for _, messages, topic, _, _, bucket_ms, *_ in counts:
        total[topic, bucket_ms] = total.get((topic, bucket_ms), 0) + messages
    return total
