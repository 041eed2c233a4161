# SPDX-License-Identifier: Apache-2.0
"""What a producer asks about its topics, through an administrator of the same cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.transport.admin import Admin
from monasca_common.kafka.transport.librdkafka_options import admin_options


class TopicQuestions:
    """The administrator is opened by the first question. It belongs to the producing client: a caller that keeps the
    client in the child of a fork keeps it as well."""

    def __init__(self, connection: ConnectionSettings) -> None:
        self._connection = connection
        self._admin: Admin | None = None
        self._lock = threading.Lock()
        self._closed = False

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        return self._opened().max_message_bytes(topics, timeout)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._opened().topic_ids(topics, timeout)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._admin = None

    def _opened(self) -> Admin:
        with self._lock:
            if self._closed:
                raise TransportError("the producer was closed during this call", name="_DESTROY")
            if self._admin is None:
                self._admin = Admin(admin_options(self._connection))
            return self._admin
