# SPDX-License-Identifier: Apache-2.0
"""Producing through librdkafka: topic requests, which both clients send through an administrator."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.transport.admin import Admin
from monasca_common.kafka.transport.base import ProducerTransport
from monasca_common.kafka.transport.librdkafka_options import admin_options


class LibrdkafkaProducer(ProducerTransport):
    """A producer whose first topic request opens the administrator; a forked child must keep it, like this client."""

    def __init__(self, connection: ConnectionSettings) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._admin_lock = threading.Lock()
        self._closed = False

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        return self._opened_admin().max_message_bytes(topics, timeout)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._opened_admin().topic_ids(topics, timeout)

    def _close_admin(self) -> None:
        with self._admin_lock:
            self._closed = True
            self._admin = None

    def _opened_admin(self) -> Admin:
        with self._admin_lock:
            if self._closed:
                raise TransportError("the producer was closed during this call", name="_DESTROY")
            if self._admin is None:
                self._admin = Admin(admin_options(self._connection))
            return self._admin
