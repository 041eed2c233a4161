# SPDX-License-Identifier: Apache-2.0
"""The settings of a mirror: frozen, declared here as the options of ``[mirror]``.

``[mirror_source]`` and ``[mirror_target]`` have the options of a connection; what is unset in them is that of
``[kafka]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

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
    """``topics``: names of topics, and patterns in which ``*`` and ``?`` stand for other characters."""

    source: ConnectionSettings
    target: ConnectionSettings
    topics: tuple[str, ...] = field(
        metadata=declared(
            help="The topics to copy, separated by commas. In a name * and ? stand for other characters; topics of "
            "Kafka's own, whose names begin with __, are never copied. There is no default.",
        )
    )
    name: str = option(
        "mirror",
        help="The name of this mirror. It reads on from what was copied under this name, and a process that starts "
        "with it stops another one that has it. A topic is copied to a cluster under one name only.",
    )
    start: Literal["earliest", "latest"] = option(
        "earliest",
        choices={"earliest": "with the oldest message", "latest": "with the messages that come from then on"},
        help="Where a topic begins that was not copied yet.",
    )
    max_bytes_per_second: int = option(
        0,
        minimum=0,
        maximum=10_000_000_000,
        unit="bytes",
        help="How many bytes of messages are copied in a second, on average; 0: any number. Too small: the mirror "
        "falls behind. Too large: other clients of both clusters wait while it catches up.",
    )
    replication_factor: int = option(
        -1,
        minimum=-1,
        maximum=100,
        unit="copies",
        help="How many copies a topic has that the mirror creates in the target; -1: as the target's brokers are "
        "configured. Too small: a broken disk takes the only copy. Too large: the target lacks the brokers for it.",
    )
    skip_deleted: bool = option(
        False,
        help="Go on with the oldest message that is left where retention deleted messages before they were copied; "
        "they are counted. Otherwise the mirror stops there.",
    )
    status: StatusSettings = field(default_factory=StatusSettings, metadata=made_of(StatusSettings))

    def matches(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.topics) and not topic.startswith("__")

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are named in full, and so have to be there."""
        return tuple(each for each in self.topics if not any(sign in each for sign in _WILDCARDS))


def mirror_settings(conf: cfg.ConfigOpts) -> MirrorSettings:
    """Raises `ConfigurationError`."""
    read = GroupReader(conf, _MIRROR)
    topics = tuple(dict.fromkeys(read["topics"] or ()))
    if not topics:
        raise read.error("topics", "is not set: name the topics to copy, or * for all of them")
    for pattern in topics:
        if not is_topic_name(pattern.replace("*", "x").replace("?", "x")):
            raise read.error("topics", f"has {pattern!r}: a topic has letters, digits, dots, dashes, underscores")
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
    """The groups of the mirror, for oslo.config's generator of sample files."""
    return [_MIRROR.listed(), group_of(SOURCE_GROUP).listed(), group_of(TARGET_GROUP).listed()]


_MIRROR = OptionGroup(
    MIRROR_GROUP,
    options_of(MirrorSettings),
    removed={
        **REMOVED_STATUS,
        "batch_size": "a transaction copies at most 5000 messages",
        "topic_refresh_seconds": "the mirror looks for new topics once a minute",
    },
)
