# SPDX-License-Identifier: Apache-2.0
"""`ProducerTransport` over confluent-kafka's Producer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from monasca_common.kafka.clock import Clock, SystemClock
from monasca_common.kafka.errors import FatalError, TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.kafka.transport.base import Outcomes
from monasca_common.kafka.transport.client_log import ClientLog
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import make_client, producer_options
from monasca_common.kafka.transport.librdkafka_producer import LibrdkafkaProducer
from monasca_common.kafka.transport.report_columns import ReportColumns
from monasca_common.kafka.transport.reservation import Reservation

LOG = logging.getLogger(__name__)


class _Refusal(Exception):
    """The client did not accept a message; the argument is its error."""


class ConfluentProducer(LibrdkafkaProducer):
    driver = "confluent"
    refusals = (_Refusal,)

    def __init__(
        self, settings: ProducerSettings, batch_bytes: int, on_error: Callable[[TransportError], None]
    ) -> None:
        super().__init__(settings.connection)
        self.clock: Clock = SystemClock()
        self._settings = settings
        self._on_error = on_error
        self._fatal = False
        options = producer_options(settings)
        options["batch.size"] = batch_bytes
        # Always set, because a wrong password is reported only here.
        options["error_cb"] = self._handle_error
        self._log = ClientLog(LOG, self.clock)
        self._client = make_client("producer_options", lambda: Producer(options, logger=self._log))
        self._reports = ReportColumns()
        self._report = self._reports.report
        self._produce: Callable[..., None] = self._client.produce
        self.send = functools.partial(self._reports.send, self)  # type: ignore[method-assign]

    def send(self, topic: str, value: bytes, key: bytes | None, reservation: Reservation) -> bytes | None:
        return self._reports.send(self, topic, value, key, reservation)

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
        callback = MethodType(self._report, sequence)
        try:
            self._produce(topic, value, key, partition, callback, callback, timestamp_ms, list(headers))
        except (KafkaException, BufferError) as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # raised by a signal handler after the client had accepted the message
            raise _Refusal(error) from None

    def fault(self, error: Any) -> TransportError:
        return translate(error.args[0] if isinstance(error, _Refusal) else error)

    def poll(self, timeout: float) -> Outcomes:
        return self._serve(self._client.poll, timeout)

    def flush(self, timeout: float) -> Outcomes:
        return self._serve(self._client.flush, timeout)

    def _serve(self, call: Callable[[float], int], timeout: float) -> Outcomes:
        try:
            call(timeout)
        except (KafkaException, SystemError) as error:
            self._finished(error)
        return self._reports.take()

    def queued(self) -> int:
        return len(self._client)

    def count(self, bucket_seconds: int) -> None:
        self._reports.bucket_ms = bucket_seconds * 1000

    def _finished(self, error: KafkaException | SystemError) -> None:
        """Handle a fatal error, which confluent-kafka raises as either exception instead of calling callbacks."""
        cause = error.__cause__ or error
        if not isinstance(cause, KafkaException | SystemError):
            raise cause from None  # raised by a signal handler after the call had returned
        if not self._fatal:
            self._fatal = True
            fault = translate(cause)
            if not fault.fatal:
                fault = FatalError(f"the client cannot continue: {fault}", name="_FATAL", fatal=True)
            self._on_error(fault)

    def _handle_error(self, error: KafkaError) -> None:
        fault = translate(error)
        self._log.log(logging.WARNING, "Kafka client %s: %s", self._settings.connection.client_id, fault)
        self._on_error(fault)

    def purge(self) -> None:
        # Otherwise this would wait for the threads of all brokers, one of which may be resolving a name.
        self._client.purge(blocking=False)

    def init_transactions(self, timeout: float) -> None:
        self._call(self._client.init_transactions, timeout)

    def begin_transaction(self) -> None:
        self._call(self._client.begin_transaction)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_metadata: Any, timeout: float) -> None:
        positions = [ClientPartition(where.topic, where.partition, offset) for where, offset in offsets.items()]
        self._call(self._client.send_offsets_to_transaction, positions, group_metadata, timeout)

    def commit_transaction(self, timeout: float) -> None:
        self._call(self._client.commit_transaction, timeout)

    def abort_transaction(self, timeout: float) -> None:
        self._call(self._client.abort_transaction, timeout)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            call(*arguments)
        except (KafkaException, SystemError) as error:
            raise translate(error) from None

    def close(self, timeout: float) -> None:
        """Destroy the client; this waits for the client's threads without a limit."""
        self._admin = None
        self._produce = _refuse
        del self._client


def _refuse(*_arguments: Any) -> None:
    raise _Refusal(KafkaError(KafkaError._DESTROY, "the client is closed"))
