# SPDX-License-Identifier: Apache-2.0
"""Option groups for oslo.config: ``[kafka]``, and one group for each consumer. A consumer's group has the consumer and
connection options; an unset option inherits the value of ``[kafka]``, so the cluster is configured once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_config import cfg

from monasca_common.kafka.declaration import Option, options_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings, ProducerSettings

KAFKA_GROUP = "kafka"


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """A group of a configuration file, with the options that one package declares in it.

    ``shared``: other libraries may have options in it, so unknown names are not an error. ``inherits``: an unset
    inherited option has the value of ``[kafka]``. ``removed``: names that this group must not contain in files, each
    with its replacement or reason. ``old``: option names of the old services, which have no effect and are logged
    instead of refused.
    """

    name: str
    options: tuple[Option, ...]
    shared: bool = False
    old: frozenset[str] = frozenset()
    removed: Mapping[str, str] = field(default_factory=dict)

    @property
    def inherits(self) -> bool:
        return self.name != KAFKA_GROUP and any(each.inherited for each in self.options)

    def oslo_options(self) -> list[cfg.Opt]:
        """Return the options for oslo.config; an inherited option has no default."""
        return [(_inheriting(each) if self.inherits and each.inherited else each).oslo() for each in self.options]

    def listed(self) -> tuple[str, list[cfg.Opt]]:
        """Return the group in the form that entry points of ``oslo.config.opts`` return."""
        return self.name, self.oslo_options()

    def register(self, conf: cfg.ConfigOpts) -> None:
        """Register the options; a repeated call changes nothing.

        Raises `ConfigurationError` if the service registered another option under one of the names.
        """
        clash = None
        try:
            conf.register_opts(self.oslo_options(), group=self.name)
        except cfg.DuplicateOptError as error:
            clash = error.opt_name
        if clash:
            raise ConfigurationError(
                f"option {clash!r} in group [{self.name}] is registered twice with different declarations: the group "
                "belongs to monasca_common, so use another name or group for the service's option"
            )


def with_defaults(options: Iterable[Option], defaults: Mapping[str, Any]) -> tuple[Option, ...]:
    """Return the options with new ``defaults`` by name."""
    return tuple(replace(each, default=defaults.get(each.name, each.default)) for each in options)


def _inheriting(declared: Option) -> Option:
    """Return the option with the default ``None``."""
    return replace(declared, default=None, example=None, help=f"{declared.help} Inherited from [{KAFKA_GROUP}].")


# The default topic and group id of the consumers of old services
_KNOWN_CONSUMERS = {
    "kafka_metrics": ("metrics", "1_metrics"),
    "kafka_alarm_history": ("alarm-state-transitions", "1_alarm-state-transitions"),
    "kafka_logs": ("log", "1_logs"),
    "kafka_events": ("monevents", "1_events"),
    "kafka_notifications": ("alarm-state-transitions", "monasca-notification"),
}
_OLD_NAMES = {
    ("kafka_notifications", "topic"): (f"{KAFKA_GROUP}.alarm_topic",),
    ("kafka_notifications", "group_id"): (f"{KAFKA_GROUP}.group",),
}
CONSUMER_GROUPS = tuple(_KNOWN_CONSUMERS)

# Groups of clients that choose topics and positions themselves, and have only connection options.
_CONNECTION_GROUPS = frozenset({"mirror_source", "mirror_target"})

_REMOVED = {
    "isolation_level": "consumers read committed messages",
    "max_uncommitted_messages": "a partition with 100,000 uncommitted offsets is paused",
}
_CONNECTION = tuple(replace(each, inherited=each.name != "driver") for each in options_of(ConnectionSettings))
_PRODUCER = options_of(ProducerSettings)
_OWN = frozenset({"topic", "group_id", "group_instance_id", "dead_letter_topic"})
_CONSUMER = tuple(replace(each, inherited=each.name not in _OWN) for each in options_of(ConsumerSettings))


def group_of(name: str) -> OptionGroup:
    """Return ``[kafka]``, a group with only connection options, or (for any other name) the group of a consumer."""
    inherited = tuple(each for each in _CONSUMER if each.inherited)
    if name == KAFKA_GROUP:
        return OptionGroup(name, (*_CONNECTION, *_PRODUCER, *inherited), removed=_REMOVED)
    if name in _CONNECTION_GROUPS:
        return OptionGroup(name, tuple(each for each in _CONNECTION if each.inherited))
    own = tuple(_known(each, name) for each in _CONSUMER if not each.inherited)
    return OptionGroup(name, (*own, *(each for each in _CONNECTION if each.inherited), *inherited), removed=_REMOVED)


def _known(declared: Option, group: str) -> Option:
    if group not in _KNOWN_CONSUMERS or declared.name not in ("topic", "group_id"):
        return declared
    topic, group_id = _KNOWN_CONSUMERS[group]
    default = (topic,) if declared.name == "topic" else group_id
    return replace(declared, default=default, old_names=_OLD_NAMES.get((group, declared.name), ()))


def register(conf: cfg.ConfigOpts, group: str = KAFKA_GROUP) -> None:
    """Register the options of ``group`` (and of ``[kafka]``, which it inherits). A repeated call changes nothing.

    Raises `ConfigurationError` if the service registered another option under one of the names.
    """
    for name in dict.fromkeys((KAFKA_GROUP, group)):
        group_of(name).register(conf)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return every group with its options, for oslo.config's generator of sample files."""
    return [group_of(group).listed() for group in (KAFKA_GROUP, *CONSUMER_GROUPS)]
