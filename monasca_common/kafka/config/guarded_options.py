# SPDX-License-Identifier: Apache-2.0
"""Raw librdkafka options: their syntax, and the options that are refused because they would break a guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from monasca_common.kafka.declaration import options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

_CALLBACK = "callbacks belong to the library, which would no longer receive outcomes and errors"

# name: the reason for the refusal, with the remedy
_REFUSED_ALWAYS = {
    "enable.ssl.certificate.verification": "TLS that trusts every certificate protects nothing: use tls_ca_file",
    "ssl.endpoint.identification.algorithm": "TLS that trusts every certificate protects nothing: put the brokers' "
    "host names into their certificates",
    "plugin.library.paths": "it loads foreign code into the client: remove it",
    "default.topic.config": "write the options in it separately",
    "test.mock.num.brokers": "messages would be acknowledged by a broker within this process, and lost when the "
    "process ends: remove it, or use driver = memory",
    "logger": _CALLBACK,
}

_REFUSED_OF_PRODUCERS = {
    "enable.idempotence": "without idempotence a lost response writes messages twice: remove it",
    "acks": "acknowledged messages would be lost with a leader; acks=all is always set: remove it",
    "message.timeout.ms": "a message that times out inside the client makes the client write other messages twice: use "
    "publish_timeout_seconds, which limits only the wait",
    "message.send.max.retries": "with fewer retries, outcomes are unknown and messages are duplicated: use "
    "publish_timeout_seconds",
    "partitioner": "keys would be assigned to different partitions than in Java and Spark: set the partition of each "
    "record",
    "queuing.strategy": "the order of messages would be lost: remove it",
    "batch.size": "the library keeps batches below the topic's limit: remove it, or use batch.num.messages",
    "delivery.report.only.error": "deliveries would no longer be reported: remove it",
}

_REFUSED_OF_CONSUMERS = {
    "enable.auto.commit": "offsets would be committed before their messages are handled: remove it",
    "enable.auto.offset.store": "offsets would be committed before their messages are handled: remove it",
    "auto.offset.reset": "a group would silently skip lost messages: use start for groups without offsets",
    "enable.partition.eof": "the consumer sets it, to move its position past records that are not messages: remove it",
    "offset.store.method": "offsets belong to the group: remove it",
    "isolation.level": "messages of aborted transactions would be read; read_committed is always set: remove it",
    "heartbeat.interval.ms": "it follows from the session time-out: use session_timeout_seconds",
}

_TOPICS = "topic."  # librdkafka accepts topic options with and without this prefix
_OTHER_NAMES = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "retries": "message.send.max.retries",
    "auto.commit.enable": "enable.auto.commit",
    "ssl.ca.pem": "ssl.ca.location",
    "ssl.certificate.pem": "ssl.certificate.location",
    "ssl.key.pem": "ssl.key.location",
    "ssl.keystore.location": "ssl.key.location",
    "ssl.keystore.password": "ssl.key.password",
}


def _decided(*settings: type) -> dict[str, str]:
    """Return the librdkafka options that these settings replace, each with the reason for its refusal."""
    return {
        name: f"this library has its own, checked option for it: use {each.name}"
        for made in (ConnectionSettings, *settings)
        for each in options_of(made)
        for name in each.librdkafka
    }


REFUSED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "producer_options": MappingProxyType(_decided(ProducerSettings) | _REFUSED_ALWAYS | _REFUSED_OF_PRODUCERS),
        "consumer_options": MappingProxyType(_decided(ConsumerSettings) | _REFUSED_ALWAYS | _REFUSED_OF_CONSUMERS),
    }
)


def refusal(option: str, name: str) -> str | None:
    """Return why ``option`` (``producer_options`` or ``consumer_options``) must not contain ``name``, or ``None``."""
    name = name.removeprefix(_TOPICS)
    if name.endswith("_cb") or name.startswith("on_"):
        return _CALLBACK
    return REFUSED[option].get(_OTHER_NAMES.get(name, name))


def parse(lines: Sequence[str], *, option: str, group: str) -> Mapping[str, str]:
    """Parse ``name=value`` lines to a mapping; a later line wins.

    Raises `ConfigurationError`, which names a librdkafka option but never quotes a value: some are secret.
    """
    parsed = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or not value:
            raise ConfigurationError(
                f"{option} in group [{group}], line {number}: not of the form name=value. Write one librdkafka option "
                f"per line, and repeat the line: {option} = socket.keepalive.enable=true"
            )
        parsed[name] = value
    for name in parsed:
        reason = refusal(option, name)
        if reason:
            raise ConfigurationError(f"{option} in group [{group}]: {name} is refused: {reason}")
    return MappingProxyType(parsed)
