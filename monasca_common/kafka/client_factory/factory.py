# SPDX-License-Identifier: Apache-2.0
"""Clients with the signatures that Monasca services use, based on the producer and consumer of this library.

New code should use `load_producer` and `load_consumer`, which report more details. The migration page lists the
differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monasca_common.kafka import plugins
from monasca_common.kafka.client_factory.clients import ServiceConsumer, ServiceProducer
from monasca_common.kafka.config import configuration, guarded_options, security
from monasca_common.kafka.declaration import Option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings, SecuritySettings

_MEMORY = "memory://"
# The values of monasca-common 3.8.0. Members of both versions can share a group, so a service can be upgraded and
# downgraded one process at a time, and a killed member is detected within the same time as before.
_STRATEGY = "range"
_SESSION_SECONDS = 10.0
_WHERE = "the arguments of the client factory"

# librdkafka options that services pass and that have equivalents among this library's options, whose bounds apply.
_FIELDS = {
    name: each
    for each in options_of(ProducerSettings, "budget_messages", "max_message_bytes", "linger_ms", "compression")
    for name in each.librdkafka
}
_SECURITY = {
    name: each
    for each in options_of(SecuritySettings)
    for name in each.librdkafka or (each.name,)  # librdkafka has no equivalent of allow_insecure_credentials
}


def get_kafka_producer(kafka_url: Sequence[str], use_legacy_client: bool = False, **config: Any) -> ServiceProducer:
    """Open a producer for the brokers of ``kafka_url``, a list of ``host:port`` (``memory://name``: in memory).

    ``config``: librdkafka options by name, such as ``**{"linger.ms": 20}``, including security options, and
    ``allow_insecure_credentials=True``, which is required to send credentials without TLS. Raises `ConfigurationError`
    for refused options, and if the legacy client is requested.
    """
    _refuse_legacy(use_legacy_client)
    raw = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in config.items()}
    secured = SecuritySettings(**_taken(raw, _SECURITY))
    client_id = raw.pop("client.id", "")
    fields = _taken(raw, _FIELDS)
    lines = [f"{name}={value}" for name, value in raw.items()]
    settings = ProducerSettings(
        connection=_connection(kafka_url, client_id, secured),
        options=guarded_options.parse(lines, option="producer_options", group=_WHERE),
        **fields,
    )
    return ServiceProducer(plugins.open_producer(settings))


def get_kafka_consumer(
    kafka_url: Sequence[str],
    kafka_consumer_group: str,
    kafka_topic: str,
    zookeeper_url: Sequence[str] | None = None,
    zookeeper_path: str | None = None,
    use_legacy_client: bool = False,
    repartition_callback: Callable[[Any, Sequence[Any]], object] | None = None,
    commit_callback: Callable[[], object] | None = None,
    max_commit_interval: float = 30,
    client_id: str = "",
) -> ServiceConsumer:
    """Return a consumer that iterates over the messages of one topic; it connects when the first one is requested.

    ``repartition_callback(consumer, partitions)`` is called before partitions are revoked, and ``commit_callback()``
    when ``max_commit_interval`` seconds have passed since the last commit. The ZooKeeper arguments are ignored, because
    brokers manage groups. A topic that does not exist is logged, and is read once it exists. Raises
    `ConfigurationError` for invalid arguments, and if the legacy client is requested.
    """
    _refuse_legacy(use_legacy_client)
    settings = ConsumerSettings(
        connection=_connection(kafka_url, client_id, SecuritySettings()),
        topics=(kafka_topic,),
        group_id=kafka_consumer_group,
        assignment_strategy=_STRATEGY,
        session_timeout_seconds=_SESSION_SECONDS,
    )
    return ServiceConsumer(
        lambda listener: plugins.open_consumer(settings, listener=listener),
        repartition_callback=repartition_callback,
        commit_callback=commit_callback,
        max_commit_interval=max_commit_interval,
    )


def _refuse_legacy(use_legacy_client: bool) -> None:
    if use_legacy_client:
        raise ConfigurationError(
            "use_legacy_client=True: the legacy client (kafka-python with ZooKeeper) was removed: omit the argument "
            "(legacy_kafka_client_enabled = false); if the group's offsets are only in ZooKeeper, first run "
            "`monasca-common offsets reset --to-datetime`, because the group would start at the earliest message"
        )


def _connection(kafka_url: Sequence[str], client_id: str, secured: SecuritySettings) -> ConnectionSettings:
    if isinstance(kafka_url, str):
        kafka_url = kafka_url.split(",")
    driver = "memory" if any(url.startswith(_MEMORY) for url in kafka_url) else "kafka"
    brokers = [url.strip().removeprefix(_MEMORY) for url in kafka_url]
    return ConnectionSettings(
        bootstrap_servers=configuration.bootstrap_servers(brokers, where=_WHERE),
        driver=driver,
        client_id=client_id or "monasca-common",
        security=security.checked(secured, group=_WHERE),
    )


def _taken(raw: dict[str, str], options: Mapping[str, Option]) -> dict[str, Any]:
    """Remove these options from ``raw``, and return their converted values by option name."""
    taken = {}
    for name, option in options.items():
        if name in raw:
            try:
                taken[option.name] = option.oslo().type(raw.pop(name))
            except ValueError as error:
                raise ConfigurationError(f"{name} in {_WHERE} is refused; correct it: {error}") from None
    return taken
