# SPDX-License-Identifier: Apache-2.0
"""Producers, consumers and serializers by configuration: entry-point names, never dotted paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from monasca_common.kafka.config import configuration
from monasca_common.kafka.entry_points import entry_point
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.options import KAFKA_GROUP
from monasca_common.kafka.serialization.base import Serializer
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings

if TYPE_CHECKING:
    from monasca_common.kafka.consumer import KafkaConsumer
    from monasca_common.kafka.consuming.rebalance import RebalanceListener
    from monasca_common.kafka.producer import KafkaProducer
    from monasca_common.kafka.transport.admin import Admin

PRODUCERS = "monasca_common.producers"
CONSUMERS = "monasca_common.consumers"
SERIALIZERS = "monasca_common.serializers"


def load_producer(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP, *, eager_callers: int | None = None) -> KafkaProducer:
    """The producer that ``[kafka]`` describes; registers the options that it reads.

    ``group``: a consumer's group, to write to the servers that this consumer reads from.
    ``eager_callers``: for a server with many threads: while more than so many wait in `KafkaProducer.publish`, their
    messages linger to share requests.
    Raises `ConfigurationError`, which names the option.
    """
    settings = dataclasses.replace(configuration.producer_settings(conf, group), eager_callers=eager_callers)
    return entry_point(PRODUCERS, settings.connection.driver, option="driver")(settings)  # type: ignore[no-any-return]


def load_consumer(
    conf: cfg.ConfigOpts,
    group: str,
    listener: RebalanceListener | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> KafkaConsumer:
    """The consumer that ``[<group>]`` describes; registers the options that it reads.

    ``partitions``: read exactly these, instead of those that the group's protocol assigns.
    Raises `ConfigurationError`, which names the option.
    """
    settings = configuration.consumer_settings(conf, group)
    factory = entry_point(CONSUMERS, settings.connection.driver, option="driver")
    return factory(settings, listener=listener, partitions=partitions)  # type: ignore[no-any-return]


def load_admin(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> Admin:
    """An administrator of the cluster that ``group`` reaches. Raises `ConfigurationError`."""
    connection = configuration.connection_settings(conf, group)
    if connection.driver != "kafka":
        raise ConfigurationError(
            f"driver={connection.driver} in group [{KAFKA_GROUP}] has no cluster to administer: use driver=kafka"
        )
    from monasca_common.kafka.transport.admin import Admin
    from monasca_common.kafka.transport.librdkafka_options import connection_options

    return Admin(connection_options(connection))


def load_serializer(name: str) -> Serializer:
    """The serializer of this name (``json``, ``raw``, …). Raises `ConfigurationError` for an unknown one."""
    return entry_point(SERIALIZERS, name, option="serializer")()  # type: ignore[no-any-return]


# The drivers' factories. Each imports what it needs when it is called, so that importing this package stays cheap.


def kafka_producer(settings: ProducerSettings) -> KafkaProducer:
    from monasca_common.kafka.producer import KafkaProducer
    from monasca_common.kafka.transport.confluent_producer import ConfluentProducer

    def open_transport(batch_bytes: int, on_error: Any) -> ConfluentProducer:
        return ConfluentProducer(settings, batch_bytes=batch_bytes, on_error=on_error)

    return KafkaProducer(settings, open_transport)


def memory_producer(settings: ProducerSettings) -> KafkaProducer:
    from monasca_common.kafka.producer import KafkaProducer
    from monasca_common.kafka.transport.memory import MemoryProducer

    def open_transport(batch_bytes: int, on_error: Any) -> MemoryProducer:
        return MemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)

    return KafkaProducer(settings, open_transport)


def kafka_consumer(
    settings: ConsumerSettings,
    *,
    listener: RebalanceListener | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> KafkaConsumer:
    from monasca_common.kafka.consumer import KafkaConsumer
    from monasca_common.kafka.transport.confluent_consumer import ConfluentConsumer

    return KafkaConsumer(settings, ConfluentConsumer(settings), listener=listener, partitions=partitions)


def memory_consumer(
    settings: ConsumerSettings,
    *,
    listener: RebalanceListener | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> KafkaConsumer:
    from monasca_common.kafka.consumer import KafkaConsumer
    from monasca_common.kafka.transport.memory import MemoryConsumer

    return KafkaConsumer(settings, MemoryConsumer(settings), listener=listener, partitions=partitions)
