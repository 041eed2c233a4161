# SPDX-License-Identifier: Apache-2.0
"""Settings as librdkafka's options. Pure functions: what they return is all that a client is configured with."""

from __future__ import annotations

from collections.abc import Mapping

from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

_DEFAULT_SESSION_MS = 45_000
_DEFAULT_HEARTBEAT_MS = 3_000
_DEFAULT_FETCH_BYTES = 50 * 1024 * 1024
_SMALLEST_FETCH_BYTES = 1_000_000  # librdkafka wants at least its message.max.bytes

# Above every limit of a topic: the producer compares sizes with the topic's own limit before it hands over.
_UNLIMITED_MESSAGE_BYTES = 1_000_000_000

# Half of it passes between the connections of a client whose TLS fails, however often that happens: librdkafka's own
# back-off does not grow then, and from its 100 ms a consumer comes back 20 times a second. A connection that stood
# for longer than this is opened again at once. With a second, answers that were lost held an API's posts for 8 s
# instead of 4: half a second costs them nothing.
_RECONNECT_MS = 500

# librdkafka's queue limits must not be met before our budget is: they also count what is being reported.
_ABOVE_BUDGET = 2


def connection_options(connection: ConnectionSettings) -> dict[str, object]:
    """What every client needs."""
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": connection.client_id,
        **connection.security,
    }


def admin_options(connection: ConnectionSettings) -> dict[str, object]:
    """The options of an `Admin` beside a producer or a consumer: it retries as long as they do."""
    return {**_reconnect_options({}), **connection_options(connection)}


def producer_options(settings: ProducerSettings) -> dict[str, object]:
    """A producer's options; the transport adds its callbacks and ``batch.size``, which follows the topics' limits."""
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
        # One message that times out bumps the epoch, and its neighbours are written again.
        options["message.timeout.ms"] = 0
    else:
        # librdkafka bounds message.timeout.ms itself, by the time after which the transaction is aborted anyway.
        options["transactional.id"] = settings.transactional_id
        options["transaction.timeout.ms"] = _ms(settings.transaction_timeout_seconds)
    return options


def consumer_options(settings: ConsumerSettings) -> dict[str, object]:
    """A consumer's options; the transport adds its callbacks."""
    options: dict[str, object] = {
        "socket.keepalive.enable": True,
        "fetch.queue.backoff.ms": 10,  # the default of 1000 makes a consumer 6 to 60 times slower
        "fetch.max.bytes": max(_SMALLEST_FETCH_BYTES, min(settings.buffer_bytes, _DEFAULT_FETCH_BYTES)),
        "queued.min.messages": 50_000,  # half the default: 40 MB less over a backlog, and no slower
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


def _reconnect_options(options: Mapping[str, str]) -> dict[str, object]:
    """librdkafka refuses a first back-off above the longest one, which may be an operator's."""
    longest = options.get("reconnect.backoff.max.ms", "")
    return {"reconnect.backoff.ms": min(_RECONNECT_MS, int(longest)) if longest.isdigit() else _RECONNECT_MS}


def _classic_options(settings: ConsumerSettings) -> dict[str, object]:
    """With KIP-848 these are the brokers' to decide, and the client refuses them."""
    if settings.session_timeout_seconds is None:
        session_ms = min(_DEFAULT_SESSION_MS, _ms(settings.max_poll_interval_seconds))
    else:
        session_ms = _ms(settings.session_timeout_seconds)
    return {
        "partition.assignment.strategy": settings.assignment_strategy or "cooperative-sticky",
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": min(_DEFAULT_HEARTBEAT_MS, session_ms // 3),
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
