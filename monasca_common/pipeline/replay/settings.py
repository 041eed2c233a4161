# SPDX-License-Identifier: Apache-2.0
"""The frozen settings of the job ``replay``, declared here as the options of ``[pipeline_replay]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from oslo_config import cfg

from monasca_common.kafka.config import (
    GroupReader,
    Option,
    OptionGroup,
    declared,
    made_of,
    options_of,
    producer_settings,
)
from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings, optional_registry_settings
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.pipeline.archive.settings import archive_location
from monasca_common.pipeline.settings import JobStatusSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import StorageSettings, check_dialect, storage_settings

REPLAY_GROUP = "pipeline_replay"


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """The target for messages: a topic."""

    topic: str
    producer: ProducerSettings


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """The target for rows: a database. Without a ``registry``, messages in Avro are not readable."""

    kind: Kind
    storage: StorageSettings
    registry: SchemaRegistrySettings | None = None


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The settings of the job. ``location``: the location of the archive."""

    location: str = field(repr=False)
    topic: str = field(metadata=declared(default="metrics", help="The archived topic that is replayed."))
    target: KafkaTarget | StorageTarget = field(
        metadata=made_of(
            Option(
                "to",
                default="kafka",
                choices={
                    "kafka": "messages, to output_topic",
                    "storage": "rows, to the database of [storage] and [database]",
                },
                help="The destination of the replayed messages.",
            ),
            Option(
                "output_topic",
                help="The topic to which messages are sent; required for to = kafka. Its consumers read them as new "
                "messages: a persister does not store a row twice, but the jobs aggregate and archive would count and "
                "archive them again. The topic's retention applies to the original timestamps of the messages.",
            ),
            Option(
                "kind",
                default=str(Kind.METRICS),
                choices=dict.fromkeys(map(str, Kind)),
                help="The kind of the messages, for to = storage.",
            ),
        )
    )
    status: JobStatusSettings = field(default_factory=JobStatusSettings, metadata=made_of(JobStatusSettings))


_REPLAY = OptionGroup(
    REPLAY_GROUP,
    options_of(ReplaySettings),
    removed=dict.fromkeys(("name", "tenant"), "--from and --to select the messages"),
)


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the group with its options, for oslo.config's generator of sample files."""
    return [_REPLAY.listed()]


def replay_settings(conf: cfg.ConfigOpts) -> ReplaySettings:
    """Return the settings of the job ``replay``. Raises `ConfigurationError`."""
    read = GroupReader(conf, _REPLAY)
    location = archive_location(conf, remedy=": name the archive to replay")
    kind = Kind(read["kind"])
    return read.settings(
        ReplaySettings,
        location=location,
        target=_to_kafka(conf, read) if read["to"] == "kafka" else _to_storage(conf, kind),
        status=read.settings(JobStatusSettings),
    )


def _to_kafka(conf: cfg.ConfigOpts, read: GroupReader) -> KafkaTarget:
    if not read["output_topic"]:
        raise read.error("output_topic", "is not set: name the topic to which messages are sent, or write to = storage")
    producer = producer_settings(conf)
    if producer.transactional_id is not None:
        raise read.error(
            "to", "is kafka, but [kafka] transactional_id is set: executors cannot share a transaction; unset it"
        )
    return KafkaTarget(read["output_topic"], producer)


def _to_storage(conf: cfg.ConfigOpts, kind: Kind) -> StorageTarget:
    settings = storage_settings(conf)
    check_dialect(settings)
    return StorageTarget(kind, settings, optional_registry_settings(conf))
