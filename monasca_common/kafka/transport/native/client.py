# SPDX-License-Identifier: Apache-2.0
"""The common part of the native producer and consumer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from monasca_common.kafka.clock import Clock
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.transport.client_log import ClientLog
from monasca_common.kafka.transport.error_translation import translate
from monasca_common.kafka.transport.librdkafka_options import make_client
from monasca_common.kafka.transport.native import _librdkafka

T = TypeVar("T")

# Indexed by syslog level, from "emergency" to "debug".
_LOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
_LOG_LINE, _FATAL_ERROR, PARTITION_EVENT = 0, 2, 4

_LONGEST_WAIT_SECONDS = 1_000_000.0
_SILENT_SECONDS, _MAX_SILENT_SECONDS = 5.0, 60.0


def open_client(option: str, options: Mapping[str, object], open_with: Callable[[dict[str, str]], T]) -> T:
    """Open a client with these options. Raises `ConfigurationError`, like `make_client`."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}

    def opened() -> T:
        try:
            return open_with(texts)
        except _librdkafka.Error as error:
            raise KafkaException(KafkaError(*error.args)) from None

    return make_client(option, opened)


def milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, at least 1 for any wait, so that a caller that waits again does not spin."""
    return math.ceil(min(seconds, _LONGEST_WAIT_SECONDS) * 1000)


class ClientEvents:
    """Forwards the log lines and client-wide errors of a client."""

    def __init__(self, logger: logging.Logger, clock: Clock, connection: ConnectionSettings) -> None:
        self._log = ClientLog(logger, clock)
        self._clock = clock
        self._client_id, self._servers = connection.client_id, connection.bootstrap_servers
        self._limit_silence(_SILENT_SECONDS)

    def reconnect(self, client: _librdkafka.Producer | _librdkafka.Consumer, *, heard: bool) -> None:
        """Add the bootstrap servers again while the client receives nothing. While a cluster restarts, its metadata can
        contain no broker; librdkafka 2.16 then has no broker left, and does not connect again (its issue 5301). It also
        keeps each added list, so without errors, as of an idle client, this happens ever more rarely."""
        if heard:
            self._limit_silence(_SILENT_SECONDS)
        elif self._clock.monotonic() >= self._silent_at:
            self._limit_silence(min(2 * self._silent_seconds, _MAX_SILENT_SECONDS))
            client.add_brokers(self._servers)

    def _limit_silence(self, seconds: float) -> None:
        self._silent_at, self._silent_seconds = self._clock.monotonic() + seconds, seconds

    def handle(self, notices: list[_librdkafka.Notice], on_error: Callable[[TransportError], None] | None) -> None:
        for kind, code, text, *_ in notices:
            if kind == _LOG_LINE:
                self._log.log(_LOG_LEVELS[code & 7], "%s", text)
            if kind in (_LOG_LINE, PARTITION_EVENT):
                continue
            if self._silent_seconds > _SILENT_SECONDS:
                self._limit_silence(_SILENT_SECONDS)
            fault = translate(KafkaError(code, text, kind == _FATAL_ERROR))
            self._log.log(logging.WARNING, "Kafka client %s: %s", self._client_id, fault)
            try:
                if on_error is not None:
                    on_error(fault)
            except Exception as error:  # other results of the call must reach the caller
                self._log.log(logging.ERROR, "an error of the Kafka client could not be handled: %r", error)
