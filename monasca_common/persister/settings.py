# SPDX-License-Identifier: Apache-2.0
"""The settings of a persister, declared as the options of ``[persister]`` and of its consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oslo_config import cfg

from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.kafka.config import (
    KAFKA_GROUP,
    GroupReader,
    OptionGroup,
    declared,
    made_of,
    options_of,
    producer_settings,
    register,
    with_defaults,
)
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings, optional_registry_settings
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.models.limits import MOST_DIMENSIONS
from monasca_common.runtime.otlp_settings import OTLP_BATCH_SIZE, OtlpTopicSettings, otlp_settings
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.batch_member import batch_consumer_settings, set_batch_defaults
from monasca_common.storage.settings import StorageSettings, storage_settings

PERSISTER_GROUP = "persister"
OTLP_KINDS = frozenset({Kind.METRICS, Kind.LOGS})

# The option group of each kind, and whether the kind is enabled by default, as in the old persister.
_CONSUMERS = {
    "kafka_metrics": (Kind.METRICS, True),
    "kafka_alarm_history": (Kind.ALARM_HISTORY, True),
    "kafka_logs": (Kind.LOGS, False),
    "kafka_events": (Kind.EVENTS, False),
}


@dataclass(frozen=True, slots=True)
class GroupSwitch:
    """The option that enables a consumer; a disabled consumer has no `GroupSettings`."""

    enabled: bool = field(metadata=declared(help="Whether the persister stores this topic."))


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of one kind of data. ``name``: its option group.

    ``producer``: the settings of the producer of dead letters, which uses the consumer's brokers. ``max_dimensions``:
    the limit in ``[storage]``; messages with more dimensions become dead letters. ``audit``: ``None`` disables audit
    reports. ``registry``: if ``None``, Avro values become dead letters. ``otlp``: if ``None``, messages are envelopes.
    """

    name: str
    kind: Kind
    num_processors: int = field(
        metadata=declared(
            default=1,
            inherited=True,
            minimum=1,
            maximum=256,
            unit="processes",
            help="The number of processes that share the topic's partitions. Too small: the persister falls behind. "
            "More than the number of partitions: processes are idle. A database with one writing process, such as "
            "sqlite, requires 1.",
        )
    )
    threads: int = field(
        metadata=declared(
            default=2,
            minimum=1,
            maximum=64,
            unit="threads",
            help="The number of partitions that one process handles concurrently: one batch is decoded while another "
            "waits for the database. Each thread has its own connection. Too small: the process waits for the "
            "database. Too large: the database runs out of connections.",
        )
    )
    max_cached_series: int = field(
        metadata=declared(
            default=200_000,
            minimum=1,
            maximum=100_000_000,
            unit="series",
            help="The number of series, of 1 kB each, that each thread caches to decode metrics. Too small: metrics "
            "of uncached series take twice as long. Too large: the process runs out of memory.",
        )
    )
    consumer: ConsumerSettings
    producer: ProducerSettings
    max_dimensions: int = MOST_DIMENSIONS
    audit: AuditSettings | None = None
    registry: SchemaRegistrySettings | None = None
    otlp: OtlpTopicSettings | None = None


@dataclass(frozen=True, slots=True)
class PersisterSettings:
    """The settings of the service."""

    groups: tuple[GroupSettings, ...]
    storage: StorageSettings
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    @property
    def consumers(self) -> tuple[ConsumerSettings, ...]:
        return tuple(group.consumer for group in self.groups)


_PERSISTER = OptionGroup(
    PERSISTER_GROUP,
    (*options_of(PersisterSettings), *options_of(GroupSettings, "max_cached_series")),
    removed={
        **REMOVED_STATUS,
        "max_consecutive_dead_letters": "10,000 consecutive dead letters stop a consumer until a restart",
    },
)
_SHARED = OptionGroup(KAFKA_GROUP, options_of(GroupSettings, "num_processors"))


def _group(name: str, *, enabled: bool) -> OptionGroup:
    """Return the options that the persister adds to the group of a consumer."""
    switch = with_defaults(options_of(GroupSwitch), {"enabled": enabled})
    otlp = options_of(OtlpTopicSettings) if _CONSUMERS[name][0] in OTLP_KINDS else ()
    return OptionGroup(name, (*switch, *options_of(GroupSettings, "num_processors", "threads"), *otlp))


_GROUPS = {name: _group(name, enabled=enabled) for name, (_, enabled) in _CONSUMERS.items()}


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return all groups with their options, for oslo.config's sample generator."""
    return [group.listed() for group in (_PERSISTER, _SHARED, *_GROUPS.values())]


def persister_settings(conf: cfg.ConfigOpts) -> PersisterSettings:
    """Return the settings of a persister; register all options that it reads. Raises `ConfigurationError`."""
    for group in (_SHARED, *_GROUPS.values()):
        register(conf, group.name)
        group.register(conf)
    set_batch_defaults(conf)
    read = GroupReader(conf, _PERSISTER)
    readers = [GroupReader(conf, group) for group in _GROUPS.values()]
    storage = storage_settings(conf)
    audit = audit_settings(conf)
    shared = {
        "max_cached_series": read["max_cached_series"],
        "max_dimensions": storage.max_dimensions,
        "audit": audit if audit.enabled else None,
        "registry": optional_registry_settings(conf),
    }
    groups = tuple(_group_settings(conf, each, shared) for each in readers if each["enabled"])
    if not groups:
        raise ConfigurationError(
            f"enabled is false in all groups of consumers: set it to true in one of {', '.join(_CONSUMERS)}"
        )
    return read.settings(PersisterSettings, groups=groups, storage=storage, status=read.settings(StatusSettings))


def _group_settings(conf: cfg.ConfigOpts, read: GroupReader, shared: Mapping[str, Any]) -> GroupSettings:
    """Return the settings of one group. ``shared``: the fields that all groups share."""
    kind = _CONSUMERS[read.group][0]
    otlp = otlp_settings(read) if kind in OTLP_KINDS else None
    # Also without OTLP, because the configuration before a reload may have had it.
    conf.set_default("batch_size", None if otlp is None else OTLP_BATCH_SIZE, group=read.group)
    return read.settings(
        GroupSettings,
        name=read.group,
        kind=kind,
        otlp=otlp,
        consumer=batch_consumer_settings(conf, read.group),
        # Dead letters and offsets are not in one transaction: the offsets are in the database, and dead letters are
        # idempotent.
        producer=replace(producer_settings(conf, read.group), transactional_id=None),
        **shared,
    )
