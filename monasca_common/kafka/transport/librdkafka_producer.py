# SPDX-License-Identifier: Apache-2.0
"""Producing through librdkafka: topic requests, which both producing clients send through an `Admin`."""

from __future__ import annotations

from collections.abc import Iterable

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.kafka.transport.admin import Admin
from monasca_common.kafka.transport.base import ProducerTransport
from monasca_common.kafka.transport.librdkafka_options import admin_options


class LibrdkafkaProducer(ProducerTransport):
    """A producer with an `Admin`, which a forked child must not destroy, like the client. A close releases it."""

    def __init__(self, connection: ConnectionSettings) -> None:
        self._admin: Admin | None = Admin(admin_options(connection))

    def max_message_bytes(self, topics: Iterable[str], timeout: float) -> dict[str, int | TransportError]:
        return self._living_admin().max_message_bytes(topics, timeout)

    def topic_ids(self, topics: Iterable[str], timeout: float) -> dict[str, str]:
        return self._living_admin().topic_ids(topics, timeout)

    def _living_admin(self) -> Admin:
        admin = self._admin
        if admin is None:
            raise TransportError("the producer was closed during this call", name="_DESTROY")
        return admin
