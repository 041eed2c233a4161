# SPDX-License-Identifier: Apache-2.0
"""Converts settings to librdkafka's options: pure functions, whose results are the whole configuration of a client. A
refused option is reported without its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaException

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

T = TypeVar("T")

_SESSION_SECONDS = 45.0
_DEFAULT_HEARTBEAT_MS = 3_000
_DEFAULT_FETCH_BYTES = 50 * 1024 * 1024
_SMALLEST_FETCH_BYTES = 1_000_000  # librdkafka requires that it is at least message.max.bytes
# The time until a new topic or partition is found; librdkafka's default is five minutes. It also limits the delay of a
# join, because librdkafka 2.16 does not repeat the metadata request of a join if it drops the server that received it.
_METADATA_REFRESH_MS = 10_000

# Above every topic's limit, because the producer compares sizes with that limit before it hands messages over.
_UNLIMITED_MESSAGE_BYTES = 1_000_000_000

# After a TLS failure a client waits half of this time between connections, because librdkafka's back-off does not grow
# then; with librdkafka's default of 100 ms a consumer connects 20 times a second. A connection that lasted longer than
# this is reopened immediately. With one second, lost responses delayed an API's posts by 8 s instead of 4 s; half a
# second does not increase the delay.
_RECONNECT_MS = 500

# librdkafka's queue limits, which also count messages that are being reported, must not be reached before the budget.
_ABOVE_BUDGET = 2

_QUOTED_VALUE = re.compile(r'value (".*"|\S+) (?=for |is )', re.DOTALL)


def connection_options(connection: ConnectionSettings) -> dict[str, object]:
    """Return the options of every client."""
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": connection.client_id,
        **connection.security,
    }


def admin_options(connection: ConnectionSettings) -> dict[str, object]:
    """Return the options of a producer's or consumer's `Admin`, which reconnects as long as that client exists."""
    return {**_reconnect_options({}), **connection_options(connection)}


def producer_options(settings: ProducerSettings) -> dict[str, object]:
    """Return a producer's options; the transport adds callbacks and ``batch.size``, which depends on topics' limits."""
    options: dict[str, object] = {
        "socket.keepalive.enable": True,
        **_reconnect_options(settings.options),
        **settings.options,
        **connection_options(settings.connection),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": settings.linger_ms,
        "compression.type": settings.compression,
        "partitioner": "murmur2_random",
        "message.max.bytes": _UNLIMITED_MESSAGE_BYTES,
        "queue.buffering.max.messages": settings.budget_messages * _ABOVE_BUDGET,
        "queue.buffering.max.kbytes": settings.budget_bytes * _ABOVE_BUDGET // 1024,
    }
    if settings.transactional_id is None:
        # No time-out, because after one, librdkafka bumps the producer epoch, which writes adjacent messages again.
        options["message.timeout.ms"] = 0
    else:
        # librdkafka itself limits message.timeout.ms to the time after which the transaction is aborted.
        options["transactional.id"] = settings.transactional_id
        options["transaction.timeout.ms"] = _ms(settings.transaction_timeout_seconds)
    return options


def consumer_options(settings: ConsumerSettings) -> dict[str, object]:
    """Return a consumer's options; the transport adds its callbacks."""
    options: dict[str, object] = {
        "socket.keepalive.enable": True,
        "fetch.queue.backoff.ms": 10,  # the default of 1000 makes a consumer 6 to 60 times slower
        "fetch.max.bytes": max(_SMALLEST_FETCH_BYTES, min(settings.buffer_bytes, _DEFAULT_FETCH_BYTES)),
        "queued.min.messages": 50_000,  # half of the default: saves 40 MB during a backlog, and is not slower
        "topic.metadata.refresh.interval.ms": _METADATA_REFRESH_MS,
        "metadata.max.age.ms": 900_000,  # librdkafka's default, which would otherwise be three refresh intervals
        **_reconnect_options(settings.options),
        **settings.options,
        **connection_options(settings.connection),
        "group.id": settings.group_id,
        "group.protocol": settings.group_protocol,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,  # so that positions move past records that are not messages
        "isolation.level": "read_committed",
        "max.poll.interval.ms": _ms(settings.max_poll_interval_seconds),
        "queued.max.messages.kbytes": settings.buffer_bytes // 1024,
    }
    if settings.group_instance_id is not None:
        options["group.instance.id"] = settings.group_instance_id
    if settings.group_protocol == "classic":
        options.update(_classic_options(settings))
    return options


def make_client(option: str, make: Callable[[], T]) -> T:
    """Return the result of ``make``; raise `ConfigurationError` if librdkafka refuses an option.

    ``option``: the source of additional options of this client, ``producer_options`` or ``consumer_options``.
    """
    try:
        return make()
    except KafkaException as error:
        reason = _QUOTED_VALUE.sub("value ", error.args[0].str().strip())
    # Raised outside the except block, so that the client's text, which can quote a value, is not in the traceback.
    raise ConfigurationError(
        f"librdkafka refuses {option} or the options for TLS and SASL: {reason}; correct that option"
    )


def _reconnect_options(options: Mapping[str, str]) -> dict[str, object]:
    """Return the first back-off, limited to the longest back-off (which operators can set), because librdkafka refuses
    a higher value."""
    longest = options.get("reconnect.backoff.max.ms", "")
    return {"reconnect.backoff.ms": min(_RECONNECT_MS, int(longest)) if longest.isdigit() else _RECONNECT_MS}


def _classic_options(settings: ConsumerSettings) -> dict[str, object]:
    """Return the options of the classic protocol; under KIP-848 the brokers set them and the client refuses them."""
    session_ms = _ms(settings.session_timeout_seconds or min(_SESSION_SECONDS, settings.max_poll_interval_seconds))
    return {
        "partition.assignment.strategy": settings.assignment_strategy or "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": min(_DEFAULT_HEARTBEAT_MS, session_ms // 3),
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
