# SPDX-License-Identifier: Apache-2.0
"""Opens producers, consumers and serializers by configured entry-point names, never by import paths."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from oslo_config import cfg

from monasca_common.kafka.config import configuration
from monasca_common.kafka.config.groups import KAFKA_GROUP
from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.consumer.rebalance import RebalanceListener
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.extras import remedy
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.processor.hooks import Hook
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.serialization.base import Serializer
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from monasca_common.kafka.transport.producer_clients import OpenTransport

if TYPE_CHECKING:
    from monasca_common.kafka.transport.admin import Admin

LOG = logging.getLogger(__name__)

T = TypeVar("T")

PRODUCERS = "monasca_common.producers"
CONSUMERS = "monasca_common.consumers"
SERIALIZERS = "monasca_common.serializers"
HOOKS = "monasca_common.hooks"
_EXTRAS = ("avro", "protobuf", "json-schema")  # the extra of each serializer


def load_producer(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> KafkaProducer:
    """Open the producer that ``[kafka]`` describes; register the options that it reads.

    ``group``: the option group of a consumer, whose brokers the producer writes to.
    Raises `ConfigurationError`, which names the option.
    """
    return open_producer(configuration.producer_settings(conf, group))


def open_producer(settings: ProducerSettings) -> KafkaProducer:
    """Open a producer with the driver of the settings. Raises `ConfigurationError` for an unknown driver."""
    return entry_point(PRODUCERS, settings.connection.driver, option="driver")(settings)  # type: ignore[no-any-return]


def load_consumer(
    conf: cfg.ConfigOpts,
    group: str,
    listener: RebalanceListener | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> KafkaConsumer:
    """Open the consumer that ``[<group>]`` describes; register the options that it reads.

    ``partitions``: the partitions to read, instead of those that the group's protocol assigns. Raises
    `ConfigurationError`, which names the option.
    """
    return open_consumer(configuration.consumer_settings(conf, group), listener=listener, partitions=partitions)


def open_consumer(
    settings: ConsumerSettings,
    *,
    listener: RebalanceListener | None = None,
    partitions: Iterable[TopicPartition] | None = None,
) -> KafkaConsumer:
    """Open a consumer with the driver of the settings, like `load_consumer`. Raises `ConfigurationError`."""
    factory = entry_point(CONSUMERS, settings.connection.driver, option="driver")
    return factory(settings, listener=listener, partitions=partitions)  # type: ignore[no-any-return]


def load_admin(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> Admin:
    """Open an `Admin` for the cluster that ``group`` connects to. Raises `ConfigurationError`."""
    return open_admin(configuration.connection_settings(conf, group))


def open_admin(connection: ConnectionSettings) -> Admin:
    """Open an `Admin` for the cluster at this connection. Raises `ConfigurationError`."""
    if not connection.has_cluster:
        raise ConfigurationError(
            f"driver={connection.driver} in group [{KAFKA_GROUP}] has no cluster to administer: use driver=kafka"
        )
    from monasca_common.kafka.transport.admin import Admin
    from monasca_common.kafka.transport.librdkafka_options import connection_options

    return Admin(connection_options(connection))


@overload
def load_serializer(name: str, *, conf: cfg.ConfigOpts | None = None, type: type[T]) -> Serializer[T]: ...


@overload
def load_serializer(name: str, *, conf: cfg.ConfigOpts | None = None, type: Any = None) -> Serializer: ...


def load_serializer(name: str, *, conf: cfg.ConfigOpts | None = None, type: Any = None) -> Serializer:  # noqa: A002
    """Open the serializer of this name: ``json``, ``msgspec``, ``raw``, ``avro``, ``protobuf``, ``json-schema`` or a
    plugin.

    ``conf``: the configuration, for plugins with options. ``type``: the type of the values, for a serializer such as
    ``msgspec``. Raises `ConfigurationError` for an unknown name, and if a type is missing or not supported.
    """
    factory = entry_point(SERIALIZERS, name, option="serializer", extra=name if name in _EXTRAS else "")
    parameters = inspect.signature(factory).parameters
    if type is not None and "type" not in parameters:
        raise ConfigurationError(f"serializer={name} has no type of values: omit type=, or use msgspec")
    given = {argument: value for argument, value in (("conf", conf), ("type", type)) if value is not None}
    for argument in ("conf", "type"):
        if argument in parameters and argument not in given and parameters[argument].default is inspect.Parameter.empty:
            raise ConfigurationError(f"serializer={name} needs {argument}: pass {argument}= to load_serializer")
    return factory(**{argument: value for argument, value in given.items() if argument in parameters})  # type: ignore[no-any-return]


# The drivers' factories. Each imports its client only when it is called, so that the import of this package is cheap.
# Factories of consumers also receive the other arguments of `open_consumer`.


def kafka_producer(settings: ProducerSettings) -> KafkaProducer:
    """Open the native client if it supports these settings, otherwise confluent-kafka."""
    driver = producing_driver(settings)
    if driver == "native":
        return native_producer(settings)
    LOG.info("driver=kafka produces with driver %s", driver)
    return confluent_producer(settings)


def producing_driver(settings: ProducerSettings) -> str:
    """Return the driver for these settings, and the reason why ``kafka`` does not select ``native``, if any."""
    if settings.connection.driver != "kafka":
        return settings.connection.driver
    from monasca_common.kafka.transport.native import native_can

    return _native_unless(native_can(settings))


def consuming_driver(connection: ConnectionSettings) -> str:
    """Return the driver of consumers with this connection, like `producing_driver`."""
    if connection.driver != "kafka":
        return connection.driver
    from monasca_common.kafka.transport.native import reason

    return _native_unless(reason())


def _native_unless(unable: str | None) -> str:
    return "native" if unable is None else f"confluent instead of native, because {unable}"


def _producer(settings: ProducerSettings, open_transport: OpenTransport) -> KafkaProducer:
    """Return a producer that uses this transport. A verbatim producer is not traced, because copies keep headers."""
    if settings.connection.tracing == "off" or settings.verbatim:
        return KafkaProducer(settings, open_transport)
    from monasca_common.kafka.tracing import TracingProducer

    return TracingProducer(settings, open_transport)


def native_producer(settings: ProducerSettings) -> KafkaProducer:
    from monasca_common.kafka.transport.native import native_can

    unable = native_can(settings)
    if unable is not None:
        raise ConfigurationError(f"driver=native cannot be used, because {unable}: use driver=kafka")
    from monasca_common.kafka.transport.native.producer import NativeProducer

    return _producer(settings, functools.partial(NativeProducer, settings))


def confluent_producer(settings: ProducerSettings) -> KafkaProducer:
    from monasca_common.kafka.transport.confluent_producer import ConfluentProducer

    return _producer(settings, functools.partial(ConfluentProducer, settings))


def memory_producer(settings: ProducerSettings) -> KafkaProducer:
    from monasca_common.kafka.transport.memory import MemoryProducer

    return _producer(settings, functools.partial(MemoryProducer, settings))


def kafka_consumer(settings: ConsumerSettings, **choices: Any) -> KafkaConsumer:
    """Open the native client if this installation has it, otherwise confluent-kafka."""
    driver = consuming_driver(settings.connection)
    if driver == "native":
        return native_consumer(settings, **choices)
    LOG.info("driver=kafka consumes with driver %s", driver)
    return confluent_consumer(settings, **choices)


def native_consumer(settings: ConsumerSettings, **choices: Any) -> KafkaConsumer:
    from monasca_common.kafka.transport.native import reason

    unavailable = reason()
    if unavailable is not None:
        raise ConfigurationError(f"driver=native cannot be used, because {unavailable}: use driver=kafka")
    from monasca_common.kafka.transport.native.consumer import NativeConsumer

    return KafkaConsumer(settings, NativeConsumer(settings), **choices)


def confluent_consumer(settings: ConsumerSettings, **choices: Any) -> KafkaConsumer:
    from monasca_common.kafka.transport.confluent_consumer import ConfluentConsumer

    return KafkaConsumer(settings, ConfluentConsumer(settings), **choices)


def memory_consumer(settings: ConsumerSettings, **choices: Any) -> KafkaConsumer:
    from monasca_common.kafka.transport.memory import MemoryConsumer

    return KafkaConsumer(settings, MemoryConsumer(settings), **choices)


@functools.lru_cache
def entry_point(namespace: str, name: str, *, option: str, extra: str = "") -> Any:
    """Load the plugin with this name, once. ``option``: the option that contains the name. ``extra``: the extra of this
    package that installs the plugin's requirements.

    Raises `ConfigurationError`, which lists the known names.
    """
    installed = importlib.metadata.entry_points(group=namespace)
    if name not in installed.names:
        raise ConfigurationError(
            f"{option}={name} is not known: use one of {', '.join(sorted(installed.names)) or '(none is installed)'}, "
            f"or install a package that offers it as an entry point of {namespace}"
        )
    try:
        return installed[name].load()
    except ImportError as error:
        raise ConfigurationError(
            f"{option}={name}: the plugin cannot be loaded: {remedy(error, extra)}, or use another plugin"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{option}={name}: the plugin cannot be loaded ({error}): install its dependencies, or use another plugin"
        ) from error


def load_hooks(names: Sequence[str]) -> tuple[Hook, ...]:
    """Create the hooks with these entry-point names, in this order. Raises `ConfigurationError` for an unknown name."""
    return tuple(entry_point(HOOKS, name, option="hooks")() for name in names)
