# SPDX-License-Identifier: Apache-2.0
"""The options of ``[kafka]`` and of the groups that configure one consumer each.

A consumer's group has the options of a consumer and of a connection. What it leaves unset it takes from
``[kafka]``, so a cluster is described once.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.errors import ConfigurationError

KAFKA_GROUP = "kafka"

MIB = 1024 * 1024
_LONE_DOLLAR = re.compile(r"(?<!\\)\$")


class _LiteralDollars:
    """A secret, or whatever else means its ``$``, must double it in a file.

    oslo.config would replace ``$name`` by an option of that name, silently, or raise an error that quotes it.
    """

    def _get_from_namespace(self, namespace: Any, group_name: str | None) -> tuple[Any, Any]:
        value, location = super()._get_from_namespace(namespace, group_name)  # type: ignore[misc]
        for text in value if isinstance(value, list) else [value]:
            if _LONE_DOLLAR.search(text.replace("$$", "")):
                raise ValueError("a $ in it must be written $$")
        return value, location


class LiteralOpt(_LiteralDollars, cfg.StrOpt):
    """Text in which every ``$`` is meant."""


class SecretOpt(_LiteralDollars, cfg.StrOpt):
    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, secret=True, **kwargs)


class SecretLinesOpt(_LiteralDollars, cfg.MultiStrOpt):
    """One ``name=value`` a line: a dictionary option would break at a comma in a value."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, secret=True, **kwargs)


_CONNECTION = [
    cfg.ListOpt(
        "bootstrap_servers",
        deprecated_opts=[cfg.DeprecatedOpt("uri"), cfg.DeprecatedOpt("url")],
        help="Brokers to ask first for the cluster's members: host:port, separated by commas. There is no default.",
        sample_default="kafka1.example.org:9092,kafka2.example.org:9092",
    ),
    cfg.StrOpt("client_id", default="monasca-common", help="The name that brokers log and set quotas for."),
    cfg.StrOpt(
        "security_protocol",
        default="PLAINTEXT",
        choices=[
            ("PLAINTEXT", "neither TLS nor credentials"),
            ("SSL", "TLS; a certificate of this client where brokers ask for one"),
            ("SASL_PLAINTEXT", "credentials that everybody on the way can read"),
            ("SASL_SSL", "credentials within TLS"),
        ],
        ignore_case=True,
        help="How to talk to brokers. SASL_PLAINTEXT also needs allow_insecure_credentials.",
    ),
    cfg.StrOpt(
        "sasl_mechanism",
        choices=[
            ("PLAIN", "the broker is told the password"),
            ("SCRAM-SHA-256", "the broker is shown that the password is known"),
            ("SCRAM-SHA-512", "the same with a longer hash"),
        ],
        ignore_case=True,
        help="How to log in, where security_protocol is SASL_SSL or SASL_PLAINTEXT.",
    ),
    SecretOpt("sasl_username", help="The user to log in as. Write $$ for each $."),
    SecretOpt("sasl_password", help="The user's password. Write $$ for each $."),
    cfg.BoolOpt(
        "allow_insecure_credentials",
        default=False,
        help="Send credentials over connections without TLS, where everybody on the way can read them.",
    ),
    cfg.StrOpt("tls_ca_file", help="PEM file of the authorities to trust. Unset: those of the operating system."),
    cfg.StrOpt("tls_certificate_file", help="PEM file of this client's certificate, where brokers ask for one."),
    cfg.StrOpt("tls_key_file", help="PEM file of the private key of tls_certificate_file."),
    SecretOpt("tls_key_password", help="Password of tls_key_file. Write $$ for each $."),
]

_DRIVER = cfg.StrOpt(
    "driver",
    default="kafka",
    help="The transport of every producer and consumer: kafka, memory (this process only, for tests), or another "
    "plugin in monasca_common.producers and monasca_common.consumers.",
)

_PRODUCER = [
    cfg.StrOpt(
        "compression",
        default="lz4",
        choices=[
            ("none", "not at all"),
            ("gzip", "small and slow"),
            ("snappy", "fast"),
            ("lz4", "fast"),
            ("zstd", "small and fast; needs brokers of version 2.1"),
        ],
        help="How batches of messages are compressed.",
    ),
    cfg.IntOpt(
        "linger_ms",
        default=10,
        min=0,
        max=1000,
        help="How long a message waits for company, in milliseconds. A publish that waits cuts it short.",
    ),
    cfg.FloatOpt(
        "publish_timeout_seconds",
        default=10.0,
        min=0.01,
        max=3600.0,
        help="How long a publish waits to learn its outcome. What is then unknown is still being delivered.",
    ),
    cfg.IntOpt(
        "budget_messages",
        default=100_000,
        min=1,
        max=10_000_000,
        help="How many messages may be on their way at once. Beyond that, sending waits and then fails.",
    ),
    cfg.IntOpt(
        "budget_bytes",
        default=256 * MIB,
        min=MIB,
        max=64 * 1024 * MIB,
        help="How many bytes of messages may be on their way at once.",
    ),
    cfg.IntOpt(
        "max_message_bytes",
        default=1_000_000,
        min=1024,
        max=1_000_000_000,
        help="Largest batch, and largest message where a topic's own max.message.bytes cannot be asked for. Set it to "
        "the smallest limit of the topics written to if this client may not describe their configuration, or if it is "
        "transactional.",
    ),
    cfg.StrOpt("transactional_id", help="Makes the producer transactional. Every live process needs its own."),
    cfg.FloatOpt(
        "transaction_timeout_seconds",
        default=60.0,
        min=1.0,
        max=900.0,
        help="After how long brokers abort a transaction that is not committed. Readers wait behind an open one.",
    ),
    cfg.ListOpt(
        "topics_without_message_id",
        default=[],
        help="Topics whose rows have a natural key: their messages carry no message-id header.",
    ),
    SecretLinesOpt(
        "producer_options",
        default=[],
        help="Further librdkafka options of producers, one name=value a line, the line repeated as needed; write "
        "$$ for each $. Those that would undo a guarantee are refused.",
    ),
]

_CONSUMER = [
    cfg.StrOpt(
        "group_protocol",
        default="classic",
        choices=[
            ("classic", "the members agree among themselves"),
            ("consumer", "the brokers decide (KIP-848, Kafka 4.0 and later)"),
        ],
        help="How the members of a group share its partitions.",
    ),
    cfg.StrOpt(
        "assignment_strategy",
        choices=[
            ("cooperative-sticky", "only what must move stops"),
            ("range", "everything stops; partitions of the same number go to the same member"),
            ("roundrobin", "everything stops; partitions are dealt out in turn"),
        ],
        help="Who gets which partition, with group_protocol classic. Unset: cooperative-sticky.",
    ),
    cfg.FloatOpt(
        "session_timeout_seconds",
        min=0.5,
        max=3600.0,
        help="After how long a silent member is taken for dead, with group_protocol classic. Unset: 45 s.",
    ),
    cfg.StrOpt(
        "start",
        default="earliest",
        help="Where a group without offsets starts: earliest, latest, or a time such as 2026-01-31T06:00:00Z.",
    ),
    cfg.IntOpt(
        "batch_size",
        default=500,
        min=1,
        max=1_000_000,
        deprecated_opts=[cfg.DeprecatedOpt("database_batch_size")],
        help="Most messages in one batch.",
    ),
    cfg.FloatOpt(
        "max_wait_time_seconds",
        default=1.0,
        min=0.01,
        max=3600.0,
        help="How long a batch may wait to fill up.",
    ),
    cfg.FloatOpt(
        "max_poll_interval_seconds",
        default=300.0,
        min=1.0,
        max=86_400.0,
        help="After how long without a poll a member loses its partitions.",
    ),
    cfg.FloatOpt(
        "stop_timeout_seconds",
        default=10.0,
        min=0.0,
        max=3600.0,
        help="How long a stop may finish and commit what is in flight.",
    ),
    cfg.StrOpt(
        "isolation_level",
        default="read_committed",
        choices=[
            ("read_committed", "hides messages of aborted and of unfinished transactions"),
            ("read_uncommitted", "shows everything"),
        ],
        help="Which messages of transactions are read.",
    ),
    cfg.FloatOpt(
        "topic_check_seconds",
        default=60.0,
        min=0.0,
        max=86_400.0,
        help="How often to look whether a topic was deleted and made again, which stops its readers. 0: never, for a "
        "broker that does not tell topics apart, such as the one within librdkafka.",
    ),
    cfg.IntOpt(
        "max_uncommitted_messages",
        default=100_000,
        min=1,
        max=100_000_000,
        help="Longest span, in messages of one partition, between what is committed and what is read.",
    ),
    cfg.IntOpt(
        "buffer_bytes",
        default=64 * MIB,
        min=MIB,
        max=2048 * MIB - 1024,
        help="How many bytes may be fetched ahead.",
    ),
    SecretLinesOpt(
        "consumer_options",
        default=[],
        help="Further librdkafka options of consumers, one name=value a line, the line repeated as needed; write "
        "$$ for each $. Those that would undo a guarantee are refused. A consumer's own come on top of [kafka]'s.",
    ),
]


@dataclass(frozen=True, slots=True)
class _KnownConsumer:
    """What a service of old read unless told otherwise, and the options of ``[kafka]`` that told it."""

    topic: str
    group_id: str
    old_topic: str | None = None
    old_group_id: str | None = None


_KNOWN_CONSUMERS = {
    "kafka_metrics": _KnownConsumer("metrics", "1_metrics"),
    "kafka_alarm_history": _KnownConsumer("alarm-state-transitions", "1_alarm-state-transitions"),
    "kafka_logs": _KnownConsumer("log", "1_logs"),
    "kafka_events": _KnownConsumer("monevents", "1_events"),
    "kafka_notifications": _KnownConsumer("alarm-state-transitions", "monasca-notification", "alarm_topic", "group"),
    "kafka_retry_notifications": _KnownConsumer(
        "retry-notifications", "monasca-notification", "notification_retry_topic", "group"
    ),
}
CONSUMER_GROUPS = tuple(_KNOWN_CONSUMERS)


def _formerly(name: str | None) -> list[cfg.DeprecatedOpt]:
    return [cfg.DeprecatedOpt(name, group=KAFKA_GROUP)] if name else []


def _own_options(group: str) -> list[cfg.Opt]:
    """What only one consumer can have, and nobody inherits."""
    known = _KNOWN_CONSUMERS.get(group)
    return [
        cfg.ListOpt(
            "topic",
            default=[known.topic] if known else None,
            deprecated_opts=_formerly(known.old_topic if known else None),
            help="The topic to read, or several separated by commas.",
        ),
        cfg.StrOpt(
            "group_id",
            default=known.group_id if known else None,
            deprecated_opts=_formerly(known.old_group_id if known else None),
            help="The consumer group that shares the topic's partitions and remembers how far it has read.",
        ),
        cfg.StrOpt(
            "group_instance_id",
            help="Static membership: a restart within the session time-out moves no partitions. Every live process "
            "of the group needs its own.",
        ),
        cfg.StrOpt(
            "dead_letter_topic",
            help="Where messages go that can never be handled, on this consumer's own servers. "
            'Unset: the topic\'s name with ".dlq" behind it.',
        ),
    ]


def inherited(option: cfg.Opt) -> cfg.Opt:
    """The same option for a consumer's group, where ``None`` stands for what ``[kafka]`` says."""
    twin = copy.copy(option)
    twin.default = twin.sample_default = None
    twin.help = f"{option.help} Inherited from [{KAFKA_GROUP}]."
    return twin


def options_of(group: str) -> list[cfg.Opt]:
    """The options of ``[kafka]``, or of a consumer's group (any other name)."""
    if group == KAFKA_GROUP:
        return [*_CONNECTION, _DRIVER, *_PRODUCER, *_CONSUMER]
    return [*_own_options(group), *map(inherited, [*_CONNECTION, *_CONSUMER])]


def register(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> None:
    """Register the options of ``group`` (and of ``[kafka]``, which it inherits); again is no error.

    Raises `ConfigurationError` where the service registered another option under one of the names.
    """
    for name in {KAFKA_GROUP, group}:
        clash = None
        try:
            conf.register_opts(options_of(name), group=name)
        except cfg.DuplicateOptError as error:
            clash = error.opt_name
        if clash:
            raise ConfigurationError(
                f"option {clash!r} in group [{name}] is registered twice, differently: the group belongs to "
                "monasca_common.kafka, so give the service's own option another name or group"
            )


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [(group, options_of(group)) for group in (KAFKA_GROUP, *CONSUMER_GROUPS)]
