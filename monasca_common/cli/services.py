# SPDX-License-Identifier: Apache-2.0
"""The configuration, topics and databases of each service, for commands that prepare or check services.

The configuration is read as the service reads it, with the same errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from oslo_config import cfg

from monasca_common.alarms.settings import NoAlarmsDatabase
from monasca_common.api.settings import api_settings, read_configuration
from monasca_common.audit.settings import audit_settings
from monasca_common.cli import configuration
from monasca_common.kafka import DeadLetters
from monasca_common.kafka.config import KAFKA_GROUP
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.notification.settings import CHANGES_GROUP, notification_settings
from monasca_common.operations.mirror.positions import POSITIONS_TOPIC
from monasca_common.operations.mirror.settings import TARGET_GROUP, mirror_settings
from monasca_common.operations.settings import lag_settings
from monasca_common.persister.settings import persister_settings
from monasca_common.pipeline.archive.settings import ARCHIVE_GROUP, archive_settings, has_archive
from monasca_common.pipeline.evaluate.settings import EVALUATE_GROUP, EvaluateSettings, evaluate_settings
from monasca_common.pipeline.replay.settings import REPLAY_GROUP, KafkaTarget, replay_settings
from monasca_common.pipeline.settings import AGGREGATE_GROUP, aggregate_stream
from monasca_common.sink.settings import SINK_GROUP, sink_settings
from monasca_common.storage.settings import StorageSettings, dialect_of, has_database, storage_settings

SERVICES = ("api", "persister", "pipeline", "lag")
# Services that many deployments do not run; configuration files need not configure them.
ON_REQUEST = ("notification", "sink")


@dataclass(frozen=True, slots=True)
class ServiceTopic:
    """A topic that a service reads or writes. ``name``: the topic's name, or a pattern for a mirror. ``group``: the
    option group of its brokers."""

    name: str
    group: str
    dead_letters: bool = False
    is_compacted: bool = False


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service",
        action="append",
        choices=(*SERVICES, *ON_REQUEST),
        help="a service of the configuration; can be repeated (default: all except notification and sink)",
    )


def chosen(parsed_args: argparse.Namespace) -> list[str]:
    """Return the requested services."""
    wanted = parsed_args.service or SERVICES
    return [name for name in (*SERVICES, *ON_REQUEST) if name in wanted]


def read_all(parsed_args: argparse.Namespace) -> dict[str, cfg.ConfigOpts]:
    """Return the configuration of each requested service. Raises `ConfigurationError`."""
    return {name: read_service(name, parsed_args.config_file) for name in chosen(parsed_args)}


def read_service(service: str, files: Sequence[str]) -> cfg.ConfigOpts:
    """Return the configuration of a service from these files or its defaults. Raises `ConfigurationError`."""
    conf = cfg.ConfigOpts()
    if service == "api":
        return read_configuration(list(files), conf)
    return configuration.read_files(files, conf)


def topics(service: str, conf: cfg.ConfigOpts) -> list[ServiceTopic]:
    """Return the topics of a service, each once, dead-letter topics last. Raises `ConfigurationError`."""
    found = [*_TOPICS[service](conf), *_of_audit(conf)]
    return sorted(dict.fromkeys(found), key=lambda each: each.dead_letters)


def databases(service: str, conf: cfg.ConfigOpts) -> list[StorageSettings]:
    """Return the databases of a service, each once. Raises `ConfigurationError`."""
    if service == "api":
        return [storage_settings(conf)] if has_database(conf) else []
    if service == "persister":
        return [persister_settings(conf).storage]
    if service == "sink":
        return [sink_settings(conf).storage]
    if service == "lag":
        return []
    if service == "notification":
        return [notification_settings(conf).database]
    streams = [aggregate_stream(conf)[0]]
    if has_archive(conf):
        streams += archive_settings(conf).streams
    evaluate = _evaluate_settings(conf)
    if evaluate is not None:
        streams.append(evaluate.stream)
    return [StorageSettings(dialect_of(url), url) for url in dict.fromkeys(each.connection for each in streams)]


def _of_api(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    settings = api_settings(conf)
    for name in (settings.metrics_topic, settings.logs_topic, settings.events_topic):
        yield ServiceTopic(name, KAFKA_GROUP)
    if settings.invalid_metrics == "drop":
        yield ServiceTopic(settings.rejected_metrics_topic, KAFKA_GROUP, dead_letters=True)


def _of_persister(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    for group in persister_settings(conf).groups:
        yield from _read_by(group.consumer, group.name)


def _of_pipeline(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    stream, output = aggregate_stream(conf)
    yield from _read_by(stream.consumer, AGGREGATE_GROUP)
    yield ServiceTopic(output, AGGREGATE_GROUP)
    if has_archive(conf):
        archive = archive_settings(conf)
        yield from (ServiceTopic(stream.topic, ARCHIVE_GROUP) for stream in archive.streams)
        if REPLAY_GROUP in conf.list_all_sections():
            target = replay_settings(conf).target
            if isinstance(target, KafkaTarget):
                yield ServiceTopic(target.topic, KAFKA_GROUP)
    evaluate = _evaluate_settings(conf)
    if evaluate is not None:
        yield ServiceTopic(evaluate.alarm_transitions_topic, EVALUATE_GROUP)
        if EVALUATE_GROUP in conf.list_all_sections():
            yield from _read_by(evaluate.stream.consumer, EVALUATE_GROUP)


def _evaluate_settings(conf: cfg.ConfigOpts) -> EvaluateSettings | None:
    """Return the settings, or ``None`` if there is no alarms database, because no alarms are evaluated then."""
    try:
        return evaluate_settings(conf)
    except NoAlarmsDatabase:
        return None


def _of_audit(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    audit = audit_settings(conf)
    if audit.enabled:
        yield ServiceTopic(audit.topic, KAFKA_GROUP)


def _of_notification(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    settings = notification_settings(conf)
    yield from _read_by(settings.consumer, CHANGES_GROUP)


def _of_sink(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    yield from _read_by(sink_settings(conf).consumer, SINK_GROUP)


def _of_lag(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    yield ServiceTopic(lag_settings(conf).topic, KAFKA_GROUP, is_compacted=True)


def _of_reports(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    """Yield only the report topic, because the counted topics belong to other services."""
    yield ServiceTopic(audit_settings(conf).topic, KAFKA_GROUP)


def _of_dashboard(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    """Yield only the topics of the audit and the lag history, because dead-letter topics belong to other services."""
    yield from (*_of_reports(conf), *_of_lag(conf))


def _of_mirror(conf: cfg.ConfigOpts) -> Iterator[ServiceTopic]:
    """Yield the topics in the target cluster."""
    for pattern in mirror_settings(conf).topics:
        yield ServiceTopic(pattern, TARGET_GROUP)
    yield ServiceTopic(POSITIONS_TOPIC, TARGET_GROUP, is_compacted=True)


def _read_by(consumer: ConsumerSettings, group: str) -> Iterator[ServiceTopic]:
    for topic in consumer.topics:
        yield ServiceTopic(topic, group)
        yield ServiceTopic(DeadLetters().topic_for(topic, consumer.dead_letter_topic), group, dead_letters=True)


_TOPICS: Mapping[str, Callable[[cfg.ConfigOpts], Iterator[ServiceTopic]]] = MappingProxyType(
    {
        "api": _of_api,
        "persister": _of_persister,
        "pipeline": _of_pipeline,
        "notification": _of_notification,
        "sink": _of_sink,
        "lag": _of_lag,
        "audit": _of_reports,
        "audit counter": _of_reports,
        "dashboard": _of_dashboard,
        "mirror": _of_mirror,
    }
)
