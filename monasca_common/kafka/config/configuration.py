# SPDX-License-Identifier: Apache-2.0
"""Reads and checks the settings of producers and consumers, at the edge of the messaging layer.

Each error is a `ConfigurationError` that names the option, its group, the rule and the remedy, and quotes no secret.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.kafka.config import guarded_options, security
from monasca_common.kafka.config.groups import KAFKA_GROUP, group_of
from monasca_common.kafka.config.reader import GroupReader
from monasca_common.kafka.declaration import options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TOPIC_NAME_RULE, is_topic_name
from monasca_common.kafka.settings import (
    ConnectionSettings,
    ConsumerSettings,
    ProducerSettings,
    SecuritySettings,
    start_ms,
)

_SECURITY = tuple(each.name for each in options_of(SecuritySettings))
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
DEAD_LETTER_SUFFIX = ".dlq"


def connection_settings(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> ConnectionSettings:
    """Return the connection settings of ``group``. Raises `ConfigurationError`."""
    return _connection(GroupReader(conf, group_of(group)))


def producer_settings(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> ProducerSettings:
    """Return the settings of a producer. Raises `ConfigurationError`.

    ``group``: the group of the consumer whose brokers it writes to, because dead letters stay on the consumer's
    brokers.
    """
    connection = connection_settings(conf, group)
    read = GroupReader(conf, group_of(KAFKA_GROUP))
    return read.settings(
        ProducerSettings,
        connection=connection,
        topics_without_message_id=frozenset(_topics(read, "topics_without_message_id")),
        topic_check_seconds=read["topic_check_seconds"],
        options=_raw_options("producer_options", read),
    )


def consumer_settings(conf: cfg.ConfigOpts, group: str) -> ConsumerSettings:
    """Return the settings of the consumer that ``group`` configures. Raises `ConfigurationError`."""
    if group == KAFKA_GROUP:
        raise ConfigurationError(
            f"[{KAFKA_GROUP}] describes no consumer: give the consumer its own group, such as [kafka_metrics]"
        )
    read = GroupReader(conf, group_of(group))
    topics = _topics(read, "topic")
    if not topics:
        raise read.error("topic", "is not set: name the topic to read")
    if not read["group_id"]:
        raise read.error("group_id", "is not set: name the consumer group that shares the topic's partitions")
    _check_membership(read)
    return read.settings(
        ConsumerSettings,
        connection=_connection(read),
        topics=topics,
        start=_start(read),
        dead_letter_topic=_dead_letter_topic(read, topics),
        options=_raw_options("consumer_options", GroupReader(conf, group_of(KAFKA_GROUP)), read),
    )


def _connection(read: GroupReader) -> ConnectionSettings:
    if read["tracing"] != "off":
        importlib.import_module("monasca_common.kafka.tracing")  # raises if its extra is not installed
    return read.settings(
        ConnectionSettings,
        bootstrap_servers=bootstrap_servers(read["bootstrap_servers"] or (), where=f"group [{read.group}]"),
        security=security.checked(_security(read), group=read.group),
    )


def _security(read: GroupReader) -> SecuritySettings:
    protocol = read["security_protocol"].upper()
    # A group that does not use the TLS or the credentials of [kafka] need not unset their options.
    unused = [name for name in _SECURITY if name.startswith("tls_") and not protocol.endswith("SSL")]
    unused += [name for name in _SECURITY if name.startswith("sasl_") and not protocol.startswith("SASL_")]
    return read.settings(
        SecuritySettings, security_protocol=protocol, **{name: read.own(name) or None for name in unused}
    )


def _raw_options(name: str, *readers: GroupReader) -> Mapping[str, str]:
    """Return the raw options of the groups; a later group overrides an earlier one."""
    merged: dict[str, str] = {}
    for read in readers:
        merged |= guarded_options.parse(read.own(name) or (), option=name, group=read.group)
    return MappingProxyType(merged)


def bootstrap_servers(brokers: Sequence[str], *, where: str) -> str:
    """Return the ``host:port`` entries as the client expects them: one string, separated by commas."""
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
                "([2001:db8::1]:9092 for IPv6) without a protocol, which security_protocol sets"
            )
    return ",".join(brokers)


def _topics(read: GroupReader, name: str) -> tuple[str, ...]:
    names = read[name] or ()
    for topic in names:
        if not is_topic_name(topic):
            raise read.error(name, f"names {topic!r}: {TOPIC_NAME_RULE}")
    return tuple(dict.fromkeys(names))


def _dead_letter_topic(read: GroupReader, topics: tuple[str, ...]) -> str | None:
    name: str | None = read["dead_letter_topic"] or None
    if name is not None and not is_topic_name(name):
        raise read.error("dead_letter_topic", f"is {name!r}: a topic has letters, digits, dots, dashes, underscores")
    loops = set(topics) & ({name} if name else {topic + DEAD_LETTER_SUFFIX for topic in topics})
    if loops:
        raise read.error("dead_letter_topic", f"is read by the same consumer: remove {sorted(loops)[0]!r} from topic")
    return name


def _check_membership(read: GroupReader) -> None:
    if read["group_protocol"] == "consumer":
        for name in ("assignment_strategy", "session_timeout_seconds"):
            if read[name] is not None:
                raise read.error(
                    name, "is decided by the brokers with group_protocol=consumer: remove it, or use classic"
                )
    elif (read["session_timeout_seconds"] or 0) > read["max_poll_interval_seconds"]:
        raise read.error(
            "session_timeout_seconds", "is longer than max_poll_interval_seconds: raise max_poll_interval_seconds"
        )
    if read["max_wait_time_seconds"] >= read["max_poll_interval_seconds"]:
        raise read.error(
            "max_wait_time_seconds",
            "is not below max_poll_interval_seconds, so the consumer would lose its partitions with every batch: "
            "reduce it",
        )


def _start(read: GroupReader) -> str:
    start: str = read["start"]
    return start.lower() if start_ms(start, where=f"group [{read.group}]") is None else start
