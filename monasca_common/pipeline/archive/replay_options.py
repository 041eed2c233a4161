# SPDX-License-Identifier: Apache-2.0
"""The options of ``[pipeline_replay]``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oslo_config import cfg

from monasca_common.kafka.config import config_file, configuration
from monasca_common.kafka.options import LiteralOpt
from monasca_common.pipeline.archive.options import ARCHIVE_GROUP, LOCATION
from monasca_common.pipeline.archive.settings import KafkaTarget, ReplaySettings, StorageTarget
from monasca_common.pipeline.options import GroupReader, status_options
from monasca_common.storage.base import Kind
from monasca_common.storage.options import check_dialect, storage_settings

REPLAY_GROUP = "pipeline_replay"

_OPTIONS = [
    cfg.StrOpt("topic", default="metrics", help="The archived topic that is replayed."),
    LiteralOpt(
        "name",
        help="Which messages: a regular expression of the whole name of a metric or an alarm, or of an event's type. "
        "Unset: all, those that nobody can read included. Write $$ for each $.",
    ),
    LiteralOpt("tenant", help="Which messages: the same of the tenant (project id). Unset: all."),
    cfg.StrOpt(
        "to",
        default="kafka",
        choices=[
            ("kafka", "messages, to output_topic"),
            ("storage", "rows, to the database of [storage] and [database]"),
        ],
        help="Where to.",
    ),
    cfg.StrOpt(
        "output_topic",
        help="The topic to which messages are sent; there is no default. Whoever reads it meets them as new messages: "
        "a persister keys them and stores nothing twice, but the jobs aggregate and archive would count and keep them "
        "once more. Its retention goes by the messages' own timestamps, which are those of then.",
    ),
    cfg.StrOpt(
        "kind",
        default=str(Kind.METRICS),
        choices=[str(kind) for kind in Kind],
        help="What the messages are, for to = storage.",
    ),
    *status_options(),
]


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    return [(REPLAY_GROUP, _OPTIONS)]


def replay_settings(conf: cfg.ConfigOpts) -> ReplaySettings:
    """What the job ``replay`` is made from. Raises `ConfigurationError`."""
    conf.register_opts(_OPTIONS, group=REPLAY_GROUP)
    conf.register_opts([LOCATION], group=ARCHIVE_GROUP)
    config_file.check_parsed(conf)
    config_file.check_group(conf, REPLAY_GROUP)
    read, of_archive = GroupReader(conf, REPLAY_GROUP), GroupReader(conf, ARCHIVE_GROUP)
    location = of_archive.secret("location")
    if not location:
        raise of_archive.error("location", "is not set: name the archive that is to be replayed")
    kind = Kind(read["kind"])
    return ReplaySettings(
        location=location,
        topic=read["topic"],
        name=_pattern(read, "name"),
        tenant=_pattern(read, "tenant"),
        target=_to_kafka(conf, read) if read["to"] == "kafka" else _to_storage(conf, kind),
    )


def _to_kafka(conf: cfg.ConfigOpts, read: GroupReader) -> KafkaTarget:
    if not read["output_topic"]:
        raise read.error("output_topic", "is not set: name the topic to which messages are sent, or write to = storage")
    producer = configuration.producer_settings(conf)
    if producer.transactional_id is not None:
        raise read.error(
            "to", "is kafka, but [kafka] transactional_id is set: executors share no transaction; unset it"
        )
    return KafkaTarget(read["output_topic"], producer)


def _to_storage(conf: cfg.ConfigOpts, kind: Kind) -> StorageTarget:
    settings = storage_settings(conf)
    check_dialect(settings)
    return StorageTarget(kind, settings)


def _pattern(read: GroupReader, name: str) -> re.Pattern[str] | None:
    text = read[name]
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise read.error(name, f"is no regular expression: {error}") from None
