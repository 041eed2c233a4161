# SPDX-License-Identifier: Apache-2.0
"""The option groups of the messaging layer: ``[kafka]``, and one for each consumer.

A consumer's group has the options of a consumer and of a connection. An unset option is
read from ``[kafka]``, so a cluster is described once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oslo_config import cfg

from monasca_common.kafka.config.oslo_options import KAFKA_GROUP, OptionGroup
from monasca_common.kafka.declaration import Option, options_of
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings


@dataclass(frozen=True, slots=True)
class _KnownConsumer:
    """The defaults of a consumer of an old service, and the options of ``[kafka]`` that changed them."""

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
    "kafka_periodic_notifications": _KnownConsumer("60-seconds-notifications", "monasca-notification", None, "group"),
}
CONSUMER_GROUPS = tuple(_KNOWN_CONSUMERS)

# Of clients that choose topics and positions themselves.
_CONNECTION_GROUPS = frozenset({"mirror_source", "mirror_target"})

_REMOVED = {
    "isolation_level": "consumers read what is committed",
    "max_uncommitted_messages": "a partition with 100,000 offsets that are read and not committed is paused",
}
_CONNECTION = tuple(replace(each, inherited=each.name != "driver") for each in options_of(ConnectionSettings))
_PRODUCER = options_of(ProducerSettings)
_OWN = frozenset({"topic", "group_id", "group_instance_id", "dead_letter_topic"})
_CONSUMER = tuple(replace(each, inherited=each.name not in _OWN) for each in options_of(ConsumerSettings))


def group_of(name: str) -> OptionGroup:
    """``[kafka]``, a group that is a connection alone, or the group of a consumer (any other name)."""
    inherited = tuple(each for each in _CONSUMER if each.inherited)
    if name == KAFKA_GROUP:
        return OptionGroup(name, (*_CONNECTION, *_PRODUCER, *inherited), removed=_REMOVED)
    if name in _CONNECTION_GROUPS:
        return OptionGroup(name, tuple(each for each in _CONNECTION if each.inherited))
    own = tuple(_known(each, name) for each in _CONSUMER if not each.inherited)
    return OptionGroup(name, (*own, *(each for each in _CONNECTION if each.inherited), *inherited), removed=_REMOVED)


def _known(declared: Option, group: str) -> Option:
    known = _KNOWN_CONSUMERS.get(group)
    if known is None or declared.name not in ("topic", "group_id"):
        return declared
    default, old = (
        ((known.topic,), known.old_topic) if declared.name == "topic" else (known.group_id, known.old_group_id)
    )
    return replace(declared, default=default, old_names=(f"{KAFKA_GROUP}.{old}",) if old else ())


def register(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> None:
    """Register the options of ``group`` (and of ``[kafka]``, which it inherits). A repeated call changes nothing.

    Raises `ConfigurationError` if the service registered another option under one of the names.
    """
    for name in dict.fromkeys((KAFKA_GROUP, group)):
        group_of(name).register(conf)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Every group with its options, for oslo.config's generator of sample files."""
    return [group_of(group).listed() for group in (KAFKA_GROUP, *CONSUMER_GROUPS)]
