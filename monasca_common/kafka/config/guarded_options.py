# SPDX-License-Identifier: Apache-2.0
"""Raw librdkafka options: their syntax, and the ones that are refused because they would undo a guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from monasca_common.kafka.declaration import options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

_CALLBACK = "callbacks belong to the library, which would stop hearing of outcomes and errors"

# name: why it is refused, with the remedy
_REFUSED_ALWAYS = {
    "enable.ssl.certificate.verification": "TLS that trusts everybody protects nothing: use tls_ca_file",
    "ssl.endpoint.identification.algorithm": "TLS that trusts everybody protects nothing: put the brokers' host "
    "names into their certificates",
    "plugin.library.paths": "it loads foreign code into the client: leave it out",
    "default.topic.config": "write the options in it by themselves",
    "test.mock.num.brokers": "messages would be acknowledged by a broker within this process, and be gone with "
    "it: leave it out, or use driver = memory",
    "logger": _CALLBACK,
}

_REFUSED_OF_PRODUCERS = {
    "enable.idempotence": "without idempotence a lost answer writes messages twice: leave it out",
    "acks": "acknowledged messages would be lost with a leader; acks=all is always set: leave it out",
    "message.timeout.ms": "a message that times out inside the client makes it write others twice: use "
    "publish_timeout_seconds, which bounds the wait alone",
    "message.send.max.retries": "giving up early makes outcomes unknown and messages double: use "
    "publish_timeout_seconds",
    "partitioner": "keys would land on other partitions than those of Java and Spark: give each record its partition",
    "queuing.strategy": "the order of messages would be lost: leave it out",
    "batch.size": "batches are kept below the topic's limit by the library: leave it out, or use batch.num.messages",
    "delivery.report.only.error": "deliveries would no longer be reported: leave it out",
}

_REFUSED_OF_CONSUMERS = {
    "enable.auto.commit": "offsets would be committed before their messages are handled: leave it out",
    "enable.auto.offset.store": "offsets would be committed before their messages are handled: leave it out",
    "auto.offset.reset": "a group would silently jump over what it lost: use start for groups without offsets",
    "enable.partition.eof": "the consumer sets it, to move its position past what is no message: leave it out",
    "offset.store.method": "offsets belong to the group: leave it out",
    "isolation.level": "messages of aborted transactions would be read; read_committed is set: leave it out",
    "heartbeat.interval.ms": "it follows from the session time-out: use session_timeout_seconds",
}

_TOPICS = "topic."  # librdkafka takes the options of topics with and without it
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
    """The client's options that options of these settings decide."""
    return {
        name: f"it has an option of its own, which is checked: use {each.name}"
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
    """Why ``option`` (``producer_options`` or ``consumer_options``) may not contain ``name``; ``None`` if it may."""
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
                f"a line, and repeat the line: {option} = socket.keepalive.enable=true"
            )
        parsed[name] = value
    for name in parsed:
        reason = refusal(option, name)
        if reason:
            raise ConfigurationError(f"{option} in group [{group}]: {name} is refused: {reason}")
    return MappingProxyType(parsed)
