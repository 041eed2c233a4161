# SPDX-License-Identifier: Apache-2.0
"""Producing through librdkafka, without confluent-kafka's objects and calls for each message."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import (
    DeliveryCount,
    DeliveryCounts,
    Outcomes,
    ProducerTransport,
    UndeliveredMessage,
)
from monasca_common.kafka.transport.client_log import ClientLog
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import producer_options
from monasca_common.kafka.transport.native import _librdkafka, native_can
from monasca_common.kafka.transport.refused_options import make_client
from monasca_common.kafka.transport.topic_questions import TopicQuestions

LOG = logging.getLogger(__name__)

# By the levels of syslog, from "emergency" to "debug".
_LOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)

_LOG_LINE, _FATAL_ERROR = 0, 2
_SEQUENCE, _OFFSET, _SIZE, _PARTITION, _NUMBERS = range(5)  # of a delivered message

_LONGEST_WAIT_SECONDS = 1_000_000.0


class NativeProducer(ProducerTransport):
    driver = "native"
    refusals = (_librdkafka.Error, BufferError)

    def __init__(
        self, settings: ProducerSettings, batch_bytes: int, on_error: Callable[[TransportError], None]
    ) -> None:
        """Raises `ConfigurationError` for settings that the native client cannot serve (`native_can`)."""
        unable = native_can(settings)
        if unable is not None:
            raise ConfigurationError(f"driver=native cannot be used: {unable}; use driver=confluent")
        self.clock: Clock = SystemClock()
        self._client_id = settings.connection.client_id
        self._on_error = on_error
        self._log = ClientLog(LOG, self.clock)
        self._topics = TopicQuestions(settings.connection)
        options = {**producer_options(settings), "batch.size": batch_bytes}
        self._client = make_client("producer_options", lambda: _open({name: _text(options[name]) for name in options}))
        # No Python frame between a producer and C.
        self.send = self._client.send  # type: ignore[assignment, method-assign]
        self.produce = self._client.produce  # type: ignore[assignment, method-assign]

    def send(self, topic: str, value: bytes, key: bytes | None, sequence: int, id_prefix: bytes | None) -> bytes | None:
        return self._client.send(topic, value, key, sequence, id_prefix)

    def produce(self, topic: str, values: list[bytes], key: bytes | None, first: int, id_prefix: bytes | None) -> int:
        return self._client.produce(topic, values, key, first, id_prefix)

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
        self._client.produce_record(topic, value, key, partition, timestamp_ms, headers, sequence)

    def fault(self, error: Any) -> TransportError:
        return translate(KafkaError(*error.args) if isinstance(error, _librdkafka.Error) else error)

    def poll(self, timeout: float) -> Outcomes:
        return self._outcomes(self._client.poll(_ms(timeout)))

    def flush(self, timeout: float) -> Outcomes:
        return self._outcomes(self._client.flush(_ms(timeout)))

    def queued(self) -> int:
        return self._client.queued()

    def count(self, bucket_seconds: int) -> None:
        self._client.count(bucket_seconds)

    def purge(self) -> None:
        self._client.purge()

    def _outcomes(self, collected: _librdkafka.Outcomes | None) -> Outcomes:
        if collected is None:
            return Outcomes()
        delivered, undelivered, counts, notices = collected
        numbers = memoryview(delivered).cast("q")
        outcomes = Outcomes(
            numbers[_SEQUENCE::_NUMBERS],
            numbers[_PARTITION::_NUMBERS],
            numbers[_OFFSET::_NUMBERS],
            numbers[_SIZE::_NUMBERS],
            [
                UndeliveredMessage(sequence, translate(KafkaError(code, text)), value, key)
                for sequence, code, text, value, key in undelivered
            ],
            _added_up(counts),
        )
        for number, text, kind in notices:
            if kind == _LOG_LINE:
                self._log.log(_LOG_LEVELS[number & 7], "%s", text)
                continue
            fault = translate(KafkaError(number, text, kind == _FATAL_ERROR))
            self._log.log(logging.WARNING, "Kafka client %s: %s", self._client_id, fault)
            try:
                self._on_error(fault)
            except Exception:  # the outcomes must reach the caller
                LOG.exception("an error of the Kafka client could not be handled")
        return outcomes

    def close(self, timeout: float) -> None:
        """Destroying a client joins its threads, which nothing bounds."""
        self._topics.close()
        self._client.close()

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        return self._topics.max_message_bytes(topics, timeout)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._topics.topic_ids(topics, timeout)


def _open(options: dict[str, str]) -> _librdkafka.Producer:
    try:
        return _librdkafka.Producer(options)
    except _librdkafka.Error as error:
        raise KafkaException(KafkaError(*error.args)) from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ms(seconds: float) -> int:
    """At least one for any wait, so that a caller who waits again does not spin."""
    return math.ceil(min(seconds, _LONGEST_WAIT_SECONDS) * 1000)


def _added_up(counts: list[_librdkafka.Count]) -> DeliveryCounts:
    total: DeliveryCounts = {}
    for topic, bucket_ms, messages, size, delay_ms, max_delay_ms in counts:
        count = total.setdefault((topic, bucket_ms), DeliveryCount())
        count.messages += messages
        count.bytes += size
        count.delay_ms += delay_ms
        count.max_delay_ms = max(count.max_delay_ms, max_delay_ms)
    return total
