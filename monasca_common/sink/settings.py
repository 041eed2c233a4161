# SPDX-License-Identifier: Apache-2.0
"""The frozen settings of a sink, declared here as the options of ``[sink]``, which also contains consumer options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from oslo_config import cfg

from monasca_common.audit.settings import AuditSettings, audit_settings
from monasca_common.kafka.config import (
    GroupReader,
    OptionGroup,
    declared,
    group_of,
    made_of,
    option,
    options_of,
    producer_settings,
    register,
)
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.runtime.settings import StatusSettings
from monasca_common.sink.mapping import TableMapping, read_mapping
from monasca_common.storage.batch_member import batch_consumer_settings, set_batch_defaults
from monasca_common.storage.settings import StorageSettings, storage_settings

SINK_GROUP = "sink"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings of a sink. ``producer``: those of the producer of dead letters, which uses the consumer's brokers.
    ``audit``: ``None`` disables audit reports."""

    mapping_file: str | None = field(
        metadata=declared(help="The mapping file, which assigns the parts of a topic's messages to tables. Required.")
    )
    num_processors: int = option(
        1,
        minimum=1,
        maximum=256,
        unit="processes",
        help="The number of processes that share the partitions. Too small: the sink falls behind. More than the "
        "number of partitions: processes are idle. A database with one writing process, such as sqlite, requires 1.",
    )
    threads: int = option(
        2,
        minimum=1,
        maximum=64,
        unit="threads",
        help="The number of partitions that one process handles concurrently. Each thread has its own connection. Too "
        "small: the process waits for the database. Too large: the database runs out of connections.",
    )
    tables: tuple[TableMapping, ...] = ()
    consumer: ConsumerSettings = field(kw_only=True)
    producer: ProducerSettings = field(kw_only=True)
    storage: StorageSettings = field(kw_only=True)
    audit: AuditSettings | None = field(default=None, kw_only=True)
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    @property
    def consumers(self) -> tuple[ConsumerSettings, ...]:
        return (self.consumer,)


_CONSUMER = tuple(each for each in group_of(SINK_GROUP).options if each.name != "topic")
_SINK = OptionGroup(SINK_GROUP, (*options_of(SinkSettings), *_CONSUMER))


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's sample generator."""
    return [_SINK.listed()]


def sink_settings(conf: cfg.ConfigOpts) -> SinkSettings:
    """Return the settings of a sink; register all options that it reads. Raises `ConfigurationError`."""
    read = GroupReader(conf, _SINK)
    set_batch_defaults(conf)
    if read["mapping_file"] is None:
        raise read.error("mapping_file", "is not set: name the file that maps topics to tables")
    tables = read_mapping(Path(read["mapping_file"]))
    register(conf, SINK_GROUP)
    location = conf.get_location("topic", SINK_GROUP)
    if location is not None and location.location is cfg.Locations.user:
        raise read.error("topic", "has no effect, because the mapping file names the topics: remove it")
    conf.set_default("topic", list(dict.fromkeys(table.topic for table in tables)), group=SINK_GROUP)
    conf.set_default("group_id", "sink", group=SINK_GROUP)
    audit = audit_settings(conf)
    return read.settings(
        SinkSettings,
        tables=tables,
        consumer=batch_consumer_settings(conf, SINK_GROUP),
        producer=replace(producer_settings(conf, SINK_GROUP), transactional_id=None),
        storage=storage_settings(conf),
        audit=audit if audit.enabled else None,
        status=read.settings(StatusSettings),
    )
