# SPDX-License-Identifier: Apache-2.0
"""Frozen settings: what configuration becomes at the edge, and all that the rest of the library knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal


def _none() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How to reach a cluster. ``security`` and option mappings hold librdkafka names; secrets never show in a repr."""

    bootstrap_servers: str
    driver: str = "kafka"
    client_id: str = "monasca-common"
    security: Mapping[str, str] = field(default_factory=_none, repr=False)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    connection: ConnectionSettings
    compression: str = "lz4"
    linger_ms: int = 10
    publish_timeout_seconds: float = 10.0
    budget_messages: int = 100_000
    budget_bytes: int = 256 * 1024 * 1024
    max_message_bytes: int = 1_000_000  # where the topic's own limit cannot be asked for
    transactional_id: str | None = None
    transaction_timeout_seconds: float = 60.0
    topics_without_message_id: frozenset[str] = frozenset()
    eager_callers: int | None = None  # while more than so many wait in `publish`, messages linger; None: they never do
    options: Mapping[str, str] = field(default_factory=_none, repr=False)  # raw, of librdkafka, checked at the edge


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    connection: ConnectionSettings
    topics: tuple[str, ...]
    group_id: str
    group_protocol: Literal["classic", "consumer"] = "classic"
    assignment_strategy: str | None = None  # classic only; None: cooperative-sticky
    session_timeout_seconds: float | None = None  # classic only
    group_instance_id: str | None = None
    start: str = "earliest"  # or "latest", or an ISO 8601 time in UTC
    batch_size: int = 500
    max_wait_time_seconds: float = 1.0
    max_poll_interval_seconds: float = 300.0
    stop_timeout_seconds: float = 10.0
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    topic_check_seconds: float = 60.0
    max_uncommitted_messages: int = 100_000  # per partition: the span between committed and read
    buffer_bytes: int = 64 * 1024 * 1024
    dead_letter_topic: str | None = None  # None: "<topic>.dlq"
    options: Mapping[str, str] = field(default_factory=_none, repr=False)
