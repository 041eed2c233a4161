# SPDX-License-Identifier: Apache-2.0
"""The settings of a mirror, declared as the options of ``[mirror]``.

``[mirror_source]`` and ``[mirror_target]`` have the options of a connection; unset options default to the values in
``[kafka]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from oslo_config import cfg

from monasca_common.kafka.config import (
    GroupReader,
    OptionGroup,
    connection_settings,
    declared,
    group_of,
    made_of,
    option,
    options_of,
)
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import is_topic_name
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.runtime.settings import REMOVED_STATUS, StatusSettings

MIRROR_GROUP = "mirror"
SOURCE_GROUP, TARGET_GROUP = "mirror_source", "mirror_target"
_WILDCARDS = "*?"


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """The settings of a mirror. ``topics``: names, or patterns with the wildcards ``*`` and ``?``."""

    source: ConnectionSettings
    target: ConnectionSettings
    topics: tuple[str, ...] = field(
        metadata=declared(
            help="The topics to copy, separated by commas, with the wildcards * and ?. Kafka's internal topics, whose "
            "names begin with __, are never copied. Required.",
        )
    )
    name: str = option(
        "mirror",
        help="The name of this mirror. A mirror resumes where the last process with the same name ended, and stops a "
        "running process with this name. Only one mirror can copy a topic to a cluster.",
    )
    skip_deleted: bool = option(
        False,
        help="If retention deleted messages before they were copied, count them and continue with the oldest message "
        "left. Otherwise the mirror stops.",
    )
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    def matches(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.topics) and not topic.startswith("__")

    @property
    def named(self) -> tuple[str, ...]:
        """The names without wildcards; these topics must exist."""
        return tuple(each for each in self.topics if not any(sign in each for sign in _WILDCARDS))


def mirror_settings(conf: cfg.ConfigOpts) -> MirrorSettings:
    """Return the settings of ``[mirror]``. Raises `ConfigurationError`."""
    read = GroupReader(conf, _MIRROR)
    topics = tuple(dict.fromkeys(read["topics"] or ()))
    if not topics:
        raise read.error("topics", "is not set: list the topics to copy, or * for all topics")
    for pattern in topics:
        if not is_topic_name(pattern.replace("*", "x").replace("?", "x")):
            raise read.error(
                "topics",
                f"has {pattern!r}: use letters, digits, dots, dashes and underscores, and the wildcards * and ?",
            )
    if not is_topic_name(read["name"]):
        raise read.error("name", f"is {read['name']!r}: use letters, digits, dots, dashes and underscores")
    source, target = connection_settings(conf, SOURCE_GROUP), connection_settings(conf, TARGET_GROUP)
    if source.bootstrap_servers == target.bootstrap_servers:
        raise ConfigurationError(
            f"bootstrap_servers in groups [{SOURCE_GROUP}] and [{TARGET_GROUP}] are the same: name two clusters"
        )
    return read.settings(
        MirrorSettings, source=source, target=target, topics=topics, status=read.settings(StatusSettings)
    )


def list_opts() -> Sequence[tuple[str, Sequence[cfg.Opt]]]:
    """Return the option groups of the mirror for oslo.config's sample generator."""
    return [_MIRROR.listed(), group_of(SOURCE_GROUP).listed(), group_of(TARGET_GROUP).listed()]


_MIRROR = OptionGroup(
    MIRROR_GROUP,
    options_of(MirrorSettings),
    removed={
        **REMOVED_STATUS,
        "batch_size": "a transaction has at most 5000 messages",
        "topic_refresh_seconds": "the mirror looks for new topics once a minute",
        "start": "a mirror copies a topic from its oldest message",
        "replication_factor": "the mirror creates topics with default.replication.factor of the target's brokers",
        "max_bytes_per_second": "set the quota consumer_byte_rate of the source for the mirror's user or client_id",
    },
)
