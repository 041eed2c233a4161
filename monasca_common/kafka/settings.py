# SPDX-License-Identifier: Apache-2.0
"""Frozen settings: configuration is converted to settings at the edge, and the library itself reads only settings.

Each option of ``[kafka]`` and of a consumer's group is declared here.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from oslo_config import cfg

from monasca_common.kafka.declaration import declared, made_of, option
from monasca_common.kafka.errors import ConfigurationError, WrongType
from monasca_common.kafka.message import DeliveryTap

MIB = 1024 * 1024
_DAY_SECONDS = 86_400.0


def _none() -> Mapping[str, str]:
    return MappingProxyType({})


def start_ms(start: str, *, where: str = "ConsumerSettings") -> int | None:
    """Return the time of the option ``start`` in milliseconds since 1970 (in UTC if it has no zone), or ``None`` for
    earliest and latest. Raises `ConfigurationError`, which names ``where``, the place of the option."""
    if start.lower() in ("earliest", "latest"):
        return None
    try:
        time = datetime.datetime.fromisoformat(start)
    except ValueError as error:
        raise ConfigurationError(
            f"start in {where} is {start!r}: write earliest, latest, or a time such as 2026-01-31T06:00:00Z"
        ) from error
    return round((time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """TLS and credentials as configured; `config.security.checked` checks and converts them to librdkafka options."""

    security_protocol: str = option(
        "PLAINTEXT",
        choices={
            "PLAINTEXT": "neither TLS nor credentials",
            "SSL": "TLS; with a certificate of this client if brokers ask for one",
            "SASL_PLAINTEXT": "credentials that everyone on the network path can read",
            "SASL_SSL": "credentials within TLS",
        },
        ignore_case=True,
        librdkafka=("security.protocol",),
        help="The protocol of connections to brokers. SASL_PLAINTEXT also needs allow_insecure_credentials.",
    )
    sasl_mechanism: str | None = option(
        None,
        choices={
            "PLAIN": "the client sends the password",
            "SCRAM-SHA-256": "the client proves that it knows the password without sending it",
            "SCRAM-SHA-512": "like SCRAM-SHA-256, with a longer hash",
        },
        ignore_case=True,
        librdkafka=("sasl.mechanism", "sasl.mechanisms"),
        help="The mechanism of the login, if security_protocol is SASL_SSL or SASL_PLAINTEXT.",
    )
    sasl_username: str | None = option(
        None,
        secret=True,
        librdkafka=("sasl.username",),
        help="The user to log in as. Write $$ for each $.",
    )
    sasl_password: str | None = option(
        None,
        secret=True,
        librdkafka=("sasl.password",),
        help="The password of sasl_username. Write $$ for each $.",
    )
    allow_insecure_credentials: bool = option(
        False,
        help="Send credentials over connections without TLS, where everyone on the network path can read them.",
    )
    tls_ca_file: str | None = option(
        None,
        librdkafka=("ssl.ca.location",),
        help="PEM file of the certificate authorities to trust. Unset: the authorities of the operating system.",
    )
    tls_certificate_file: str | None = option(
        None,
        librdkafka=("ssl.certificate.location",),
        help="PEM file of this client's certificate, if brokers ask for one.",
    )
    tls_key_file: str | None = option(
        None,
        librdkafka=("ssl.key.location",),
        help="PEM file of the private key that belongs to tls_certificate_file.",
    )
    tls_key_password: str | None = option(
        None,
        secret=True,
        librdkafka=("ssl.key.password",),
        help="The password of tls_key_file. Write $$ for each $.",
    )


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """A connection to a cluster. ``security`` and option mappings use librdkafka's names; secrets are not in a repr."""

    bootstrap_servers: str = field(
        metadata=declared(
            type=cfg.ListOpt,
            librdkafka=("bootstrap.servers", "metadata.broker.list"),
            old_names=("uri", "url"),
            example="kafka1.example.org:9092,kafka2.example.org:9092",
            help="The brokers to connect to first, as host:port, separated by commas; they report all other brokers. "
            "There is no default.",
        )
    )
    client_id: str = option(
        "monasca-common",
        librdkafka=("client.id",),
        help="The name under which brokers log this client and apply quotas to it.",
    )
    security: Mapping[str, str] = field(default_factory=_none, repr=False, metadata=made_of(SecuritySettings))
    driver: str = option(
        "kafka",
        help="The transport of every producer and consumer: kafka (native where it is installed, confluent elsewhere "
        "and for transactions), native, confluent, memory (this process only, for tests), or another plugin in "
        "monasca_common.producers and monasca_common.consumers.",
    )
    tracing: str = option(
        "off",
        choices={
            "off": "no tracing",
            "on": "trace contexts in headers of messages, and spans",
            "messaging": "spans also have the attributes of OpenTelemetry's conventions for messaging",
        },
        help="Tracing with OpenTelemetry (needs the extra otel, and an SDK): sampled traces continue in the headers of "
        "messages.",
    )

    @property
    def has_cluster(self) -> bool:
        """Whether the driver connects to Kafka brokers, which can be administered."""
        return self.driver in ("kafka", "native", "confluent")


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer. ``verbatim``, for copies: headers are written as given, and no id is created, moved, or
    compared with ids in flight. ``tap``: creates the `DeliveryTap` of each producer."""

    connection: ConnectionSettings
    compression: str = option(
        "lz4",
        choices={
            "none": "no compression",
            "gzip": "small output, slow",
            "snappy": "fast",
            "lz4": "fast",
            "zstd": "small output, fast; needs brokers of version 2.1",
        },
        librdkafka=("compression.type", "compression.codec"),
        help="The codec that compresses batches of messages.",
    )
    linger_ms: int = option(
        10,
        minimum=0,
        maximum=1000,
        librdkafka=("linger.ms", "queue.buffering.max.ms"),
        help="Time that a message may linger so that other messages share its request. Too small: more requests and "
        "worse compression. Too large: later delivery. A publish that waits for its outcome ends the linger.",
    )
    publish_timeout_seconds: float = option(
        10.0,
        minimum=0.01,
        maximum=3600.0,
        help="Time that a publish waits for its outcome. After that, the outcome of unacknowledged messages is unknown "
        "and delivery continues. Too small: outcomes are unknown although they arrive shortly afterwards. Too large: "
        "callers wait for a long time while Kafka does not respond.",
    )
    budget_messages: int = option(
        100_000,
        minimum=1,
        maximum=10_000_000,
        librdkafka=("queue.buffering.max.messages",),
        help="Maximum number of messages in flight. Beyond that, sending waits and then fails. Too small: "
        "senders wait for acknowledgements. Too large: more messages are unknown after a crash.",
    )
    budget_bytes: int = option(
        256 * MIB,
        minimum=MIB,
        maximum=64 * 1024 * MIB,
        librdkafka=("queue.buffering.max.kbytes",),
        help="Maximum bytes of messages in flight. Beyond that, sending waits and then fails. Too "
        "small: senders wait for acknowledgements. Too large: the process runs out of memory while Kafka does not "
        "respond.",
    )
    max_message_bytes: int = option(
        1_000_000,
        minimum=1024,
        maximum=1_000_000_000,
        librdkafka=("message.max.bytes",),
        help="Largest batch, and largest message if the topic's own max.message.bytes cannot be read. Set it to the "
        "smallest limit of the topics written to if this client may not describe their configuration, or if it is "
        "transactional. Too small: valid messages fail. Too large: brokers refuse batches.",
    )
    transactional_id: str | None = option(
        None,
        librdkafka=("transactional.id",),
        help="Makes the producer transactional. Every live process needs its own id, because a second process with the "
        "same id fences the first. The services ignore this option.",
    )
    transaction_timeout_seconds: float = option(
        60.0,
        minimum=1.0,
        maximum=900.0,
        librdkafka=("transaction.timeout.ms",),
        help="Time after which brokers abort an uncommitted transaction. Too small: slow work is aborted. Too "
        "large: readers wait for the open transaction of a dead process to end.",
    )
    topics_without_message_id: frozenset[str] = option(
        frozenset(),
        help="Topics whose rows have a natural key: their messages carry no message-id header.",
    )
    verbatim: bool = False
    topic_check_seconds: float = 60.0
    tap: Callable[[], DeliveryTap] | None = field(default=None, repr=False, compare=False)
    options: Mapping[str, str] = option(
        name="producer_options",
        default_factory=_none,
        secret=True,
        help="Further librdkafka options of producers, one name=value per line; repeat the line as needed. Write $$ "
        "for each $. Options that would undo a guarantee are refused.",
    )


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer. ``topics`` has at least one name. Without ``dead_letter_topic``, dead letters go to
    ``<topic>.dlq``.

    ``max_uncommitted_messages``: a partition is paused once this number of its offsets have been read but not
    committed.
    """

    connection: ConnectionSettings
    topics: tuple[str, ...] = field(
        metadata=declared(name="topic", help="The topic to read, or several separated by commas.")
    )
    group_id: str = field(
        metadata=declared(
            librdkafka=("group.id",),
            help="The consumer group that shares the topic's partitions and stores the committed offsets.",
        )
    )
    group_protocol: Literal["classic", "consumer"] = option(
        "classic",
        choices={
            "classic": "the members assign the partitions themselves",
            "consumer": "the brokers decide (KIP-848, Kafka 4.0 and later)",
        },
        librdkafka=("group.protocol",),
        help="The protocol by which the members of a group share its partitions.",
    )
    assignment_strategy: str | None = option(
        None,
        choices={
            "cooperative-sticky": "only partitions that move stop",
            "range": "all partitions stop; partitions with the same number are assigned to the same member",
            "roundrobin": "all partitions stop; partitions are distributed in turn",
        },
        librdkafka=("partition.assignment.strategy",),
        help="The strategy that assigns partitions to members, with group_protocol classic. Unset: cooperative-sticky.",
    )
    session_timeout_seconds: float | None = option(
        None,
        minimum=0.5,
        maximum=3600.0,
        librdkafka=("session.timeout.ms",),
        help="Time after which brokers remove a silent member, with group_protocol classic. Too small: a busy "
        "member loses its partitions. Too large: the partitions of a dead member remain unread for a long time. Unset: "
        "45 s.",
    )
    group_instance_id: str | None = option(
        None,
        librdkafka=("group.instance.id",),
        help="Static membership: a restart within the session time-out moves no partitions. Every live process of the "
        "group needs its own id.",
    )
    start: str = option(
        "earliest",
        help="The start of a group without committed offsets: earliest, latest, or a time such as "
        "2026-01-31T06:00:00Z.",
    )
    batch_size: int = option(
        500,
        minimum=1,
        maximum=1_000_000,
        unit="messages",
        old_names=("database_batch_size",),
        help="Maximum number of messages in a batch. Too small: a commit or a transaction for every few messages. Too "
        "large: a batch takes much memory, and handling it can exceed max_poll_interval_seconds.",
    )
    max_wait_time_seconds: float = option(
        1.0,
        minimum=0.01,
        maximum=3600.0,
        help="Time that a batch may wait to fill up. Too small: small batches. Too large: messages are handled late.",
    )
    max_poll_interval_seconds: float = option(
        300.0,
        minimum=1.0,
        maximum=_DAY_SECONDS,
        librdkafka=("max.poll.interval.ms",),
        help="Time without a poll after which a member loses its partitions. Too small: slow work is done twice. "
        "Too large: the partitions of a hung process remain unread for a long time.",
    )
    stop_timeout_seconds: float = option(
        10.0,
        minimum=0.0,
        maximum=3600.0,
        help="Maximum time of a stop to finish and commit messages in flight. Too small: unfinished messages are read "
        "again after the restart. Too large: a stop with a hung handler takes a long time.",
    )
    topic_check_seconds: float = option(
        60.0,
        minimum=0.0,
        maximum=_DAY_SECONDS,
        help="Interval of the check for deleted and recreated topics, which stops their readers. Too small: more "
        "requests to the brokers. Too large: a reader detects the change late. 0: never, for a broker without topic "
        "ids, such as the one within librdkafka.",
    )
    buffer_bytes: int = option(
        64 * MIB,
        minimum=MIB,
        maximum=2048 * MIB - 1024,
        librdkafka=("queued.max.messages.kbytes",),
        help="Maximum bytes fetched ahead of the handler. Too small: handlers wait for fetches. Too large: the "
        "process runs out of memory.",
    )
    dead_letter_topic: str | None = option(
        None,
        help="The topic for messages that can never be handled, on this consumer's brokers. "
        'Unset: the topic\'s name followed by ".dlq".',
    )
    max_uncommitted_messages: int = 100_000
    options: Mapping[str, str] = option(
        name="consumer_options",
        default_factory=_none,
        secret=True,
        help="Further librdkafka options of consumers, one name=value per line; repeat the line as needed. Write $$ "
        "for each $. Options that would undo a guarantee are refused. A consumer's list is added to that of [kafka].",
    )

    def __post_init__(self) -> None:
        given: object = self.topics
        if isinstance(given, str):
            raise WrongType(f"topics is a tuple of names, not str: write topics=({given!r},)")
