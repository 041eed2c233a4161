# SPDX-License-Identifier: Apache-2.0
"""From oslo.config to frozen settings: the edge at which every value is checked.

Each error is a `ConfigurationError` that names the option, its group, the rule and the remedy, and quotes no secret.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.config import config_file, guarded_options
from monasca_common.kafka.config.security import SecurityOptions
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.options import KAFKA_GROUP, options_of, register
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

_SECRETS = frozenset(option.name for option in options_of(KAFKA_GROUP) if option.secret)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
DEAD_LETTER_SUFFIX = ".dlq"


class OptionReader:
    """Reads the options of one group, those of ``[kafka]`` standing in for what it leaves unset."""

    def __init__(self, conf: cfg.ConfigOpts, group: str) -> None:
        self.group = group
        self._conf = conf
        register(conf, group)
        config_file.check_parsed(conf)
        config_file.check_names(conf, group)

    def __getitem__(self, name: str) -> Any:
        value = self.own(name)
        return self._read(KAFKA_GROUP, name) if value is None else value

    def own(self, name: str) -> Any:
        """The group's value, without inheritance."""
        return self._read(self.group, name)

    def of_kafka(self, name: str) -> Any:
        """The value of ``[kafka]``, for what no other group has."""
        return self._read(KAFKA_GROUP, name)

    def text(self, name: str) -> str | None:
        """Like indexing, an empty value being none."""
        return self[name] or None

    def own_text(self, name: str) -> str | None:
        return self.own(name) or None

    def raw_options(self, name: str, *groups: str) -> Mapping[str, str]:
        """Those of the groups, each on top of the one before."""
        merged: dict[str, str] = {}
        for group in groups:
            merged |= guarded_options.parse(self._read(group, name) or (), option=name, group=group)
        return MappingProxyType(merged)

    def error(self, name: str, rule: str) -> ConfigurationError:
        return _error(self.group, name, rule)

    def _read(self, group: str, name: str) -> Any:
        # Raised outside of the handler: the original error may quote the value, and would be its context.
        refused = None
        try:
            return getattr(self._conf[group], name)
        except (cfg.Error, ValueError) as error:
            refused = self._refusal(group, name, error)
        raise refused

    @staticmethod
    def _refusal(group: str, name: str, error: Exception) -> ConfigurationError:
        if name not in _SECRETS:
            return ConfigurationError(
                f"{name} in group [{group}] is refused, correct it: {config_file.broken_rule(error)}"
            )
        return ConfigurationError(
            f"{name} in group [{group}] cannot be read: a $ in its value must be written $$ (the value is a secret and "
            "is not shown)"
        )


def connection_settings(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> ConnectionSettings:
    """How ``group`` reaches its cluster. Raises `ConfigurationError`."""
    return _connection(OptionReader(conf, group))


def producer_settings(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> ProducerSettings:
    """What a producer is made from. Raises `ConfigurationError`.

    ``group``: the consumer whose servers to write to, which is where its dead letters go.
    """
    read = OptionReader(conf, group)
    return ProducerSettings(
        connection=_connection(read),
        compression=read.of_kafka("compression"),
        linger_ms=read.of_kafka("linger_ms"),
        publish_timeout_seconds=read.of_kafka("publish_timeout_seconds"),
        budget_messages=read.of_kafka("budget_messages"),
        budget_bytes=read.of_kafka("budget_bytes"),
        max_message_bytes=read.of_kafka("max_message_bytes"),
        transactional_id=read.of_kafka("transactional_id") or None,
        transaction_timeout_seconds=read.of_kafka("transaction_timeout_seconds"),
        topics_without_message_id=frozenset(_topics(read, KAFKA_GROUP, "topics_without_message_id")),
        options=read.raw_options("producer_options", KAFKA_GROUP),
    )


def consumer_settings(conf: cfg.ConfigOpts, group: str) -> ConsumerSettings:
    """What the consumer that ``group`` configures is made from. Raises `ConfigurationError`."""
    if group == KAFKA_GROUP:
        raise ConfigurationError(
            f"[{KAFKA_GROUP}] describes no consumer: give the consumer a group of its own, such as [kafka_metrics]"
        )
    read = OptionReader(conf, group)
    topics = _topics(read, group, "topic")
    if not topics:
        raise read.error("topic", "is not set: name the topic to read")
    if not read.own("group_id"):
        raise read.error("group_id", "is not set: name the consumer group that shares the topic's partitions")
    _check_membership(read)
    return ConsumerSettings(
        connection=_connection(read),
        topics=topics,
        group_id=read.own("group_id"),
        group_protocol=read["group_protocol"],
        assignment_strategy=read["assignment_strategy"],
        session_timeout_seconds=read["session_timeout_seconds"],
        group_instance_id=read.own_text("group_instance_id"),
        start=_start(read),
        batch_size=read["batch_size"],
        max_wait_time_seconds=read["max_wait_time_seconds"],
        max_poll_interval_seconds=read["max_poll_interval_seconds"],
        stop_timeout_seconds=read["stop_timeout_seconds"],
        isolation_level=read["isolation_level"],
        topic_check_seconds=read["topic_check_seconds"],
        max_uncommitted_messages=read["max_uncommitted_messages"],
        buffer_bytes=read["buffer_bytes"],
        dead_letter_topic=_dead_letter_topic(read, topics),
        options=read.raw_options("consumer_options", KAFKA_GROUP, group),
    )


def _connection(read: OptionReader) -> ConnectionSettings:
    return ConnectionSettings(
        bootstrap_servers=bootstrap_servers(read["bootstrap_servers"] or (), where=f"group [{read.group}]"),
        driver=read.of_kafka("driver"),
        client_id=read["client_id"],
        security=_security(read).checked(),
    )


def _security(read: OptionReader) -> SecurityOptions:
    protocol = read["security_protocol"].upper()
    # A group that leaves TLS or credentials of [kafka] aside need not unset what belongs to them.
    tls = read.text if protocol.endswith("SSL") else read.own_text
    sasl = read.text if protocol.startswith("SASL_") else read.own_text
    return SecurityOptions(
        group=read.group,
        security_protocol=protocol,
        allow_insecure_credentials=read["allow_insecure_credentials"],
        sasl_mechanism=sasl("sasl_mechanism"),
        sasl_username=sasl("sasl_username"),
        sasl_password=sasl("sasl_password"),
        tls_ca_file=tls("tls_ca_file"),
        tls_certificate_file=tls("tls_certificate_file"),
        tls_key_file=tls("tls_key_file"),
        tls_key_password=tls("tls_key_password"),
    )


def bootstrap_servers(brokers: Sequence[str], *, where: str) -> str:
    """``host:port`` entries as the client wants them: one string, separated by commas."""
    if not brokers:
        raise ConfigurationError(
            f"bootstrap_servers in {where} is not set, and there is no default: name brokers as host:port, "
            "separated by commas"
        )
    for broker in brokers:
        match = _BROKER.fullmatch(broker)
        if not match or not 0 < int((match[2] or ":9092")[1:]) < 65_536:
            raise ConfigurationError(
                f"bootstrap_servers in {where}: {broker!r} is not host:port: write names or addresses "
                "([2001:db8::1]:9092 for IPv6) without a protocol, which is security_protocol's"
            )
    return ",".join(brokers)


def _topics(read: OptionReader, group: str, name: str) -> tuple[str, ...]:
    names = read.of_kafka(name) if group == KAFKA_GROUP else read.own(name)
    for topic in names or ():
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise _error(
                group, name, f"names {topic!r}: a topic has 1 to 249 letters, digits, dots, dashes, underscores"
            )
    return tuple(dict.fromkeys(names or ()))


def _dead_letter_topic(read: OptionReader, topics: tuple[str, ...]) -> str | None:
    name = read.own_text("dead_letter_topic")
    if name is not None and not _TOPIC.fullmatch(name):
        raise read.error("dead_letter_topic", f"is {name!r}: a topic has letters, digits, dots, dashes, underscores")
    loops = set(topics) & ({name} if name else {topic + DEAD_LETTER_SUFFIX for topic in topics})
    if loops:
        raise read.error("dead_letter_topic", f"is read by the same consumer: take {sorted(loops)[0]!r} out of topic")
    return name


def _check_membership(read: OptionReader) -> None:
    if read["group_protocol"] == "consumer":
        for name in ("assignment_strategy", "session_timeout_seconds"):
            if read[name] is not None:
                raise read.error(
                    name, "is the brokers' to decide with group_protocol=consumer: remove it, or use classic"
                )
    elif (read["session_timeout_seconds"] or 0) > read["max_poll_interval_seconds"]:
        raise read.error("session_timeout_seconds", "is longer than max_poll_interval_seconds: raise the latter")
    if read["max_wait_time_seconds"] >= read["max_poll_interval_seconds"]:
        raise read.error(
            "max_wait_time_seconds",
            "is not below max_poll_interval_seconds, so every batch would cost the membership: lower it",
        )


def _start(read: OptionReader) -> str:
    start: str = read["start"]
    if start.lower() in ("earliest", "latest"):
        return start.lower()
    try:
        time = datetime.datetime.fromisoformat(start)
    except ValueError:
        raise read.error(
            "start", f"is {start!r}: write earliest, latest, or a time such as 2026-01-31T06:00:00Z"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return time.astimezone(datetime.UTC).isoformat()


def _error(group: str, name: str, rule: str) -> ConfigurationError:
    return ConfigurationError(f"{name} in group [{group}] {rule}")
