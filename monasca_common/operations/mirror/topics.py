# SPDX-License-Identifier: Apache-2.0
"""Selects the topics that a mirror copies, and checks that the target accepts exact copies of their messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from monasca_common.kafka import Admin, ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.mirror.positions import POSITIONS_TOPIC
from monasca_common.operations.mirror.settings import MirrorSettings

# Settings copied to topics that are created in the target: retention and message limits.
_COPIED = (
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "retention.bytes",
    "retention.ms",
)
_OF_PRODUCERS = {"message.timestamp.type": "CreateTime"}
# The maximum per request, because a controller refuses more than 10,000 records (partitions, settings and names).
_TOPICS_AT_ONCE = 250
_PARTITIONS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    name: str
    partitions: int
    source_id: str
    target_id: str
    max_message_bytes: int

    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """The topics to copy. ``refused``: the reasons for not copying other topics, by topic."""

    topics: tuple[MirroredTopic, ...]
    refused: Mapping[str, str]


def check_clusters(source: Admin, target: Admin) -> None:
    """Raise `ConfigurationError` if source and target are the same cluster, because each copy would be copied again."""
    if source.cluster_id() == target.cluster_id():
        raise ConfigurationError(
            "[mirror_source] and [mirror_target] reach the same cluster, so every copy would be copied again: correct "
            "their bootstrap_servers"
        )


def plan_topics(settings: MirrorSettings, source: Admin, target: Admin, stopping: threading.Event) -> MirrorPlan:
    """Describe both clusters, and create topics missing in the target. Return no topics if the mirror is stopped in the
    meantime. Raises `TransportError`."""
    there = source.partition_counts()
    refused = {name: "the source has no such topic" for name in settings.named if name not in there}
    wanted = {
        name: count for name, count in sorted(there.items()) if settings.matches(name) and name != POSITIONS_TOPIC
    }
    _create_missing(source, target, wanted, stopping)
    if stopping.is_set():  # topics may still be missing
        return MirrorPlan((), refused)
    counts, configs = target.partition_counts(), target.topic_configs(wanted)
    limits = source.topic_configs(wanted)
    for name, count in wanted.items():
        reason = _refusal(count, counts[name], limits[name], configs[name])
        if reason:
            refused[name] = reason
    copied = [name for name in wanted if name not in refused]
    source_ids, target_ids = source.topic_ids(copied, 10.0), target.topic_ids(copied, 10.0)
    topics = tuple(
        MirroredTopic(name, wanted[name], source_ids[name], target_ids[name], _limit(configs[name]))
        for name in copied
        if name in source_ids and name in target_ids  # otherwise, the topic was deleted in the meantime
    )
    return MirrorPlan(topics, refused)


def _create_missing(source: Admin, target: Admin, wanted: Mapping[str, int], stopping: threading.Event) -> None:
    """Create topics with the default replication factor of the target's brokers."""
    missing = sorted(wanted.keys() - target.partition_counts().keys())
    configs = {
        name: {key: config[key] for key in _COPIED if key in config} | _OF_PRODUCERS
        for name, config in source.topic_configs(missing).items()
    }
    for bulk in _bulks({name: wanted[name] for name in missing}):
        if stopping.is_set():
            return
        target.create_topics(bulk, replication_factor=-1, configs=configs)


def _bulks(partitions: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield requests within the limits. ``partitions``: the number of partitions by topic."""
    bulk: dict[str, int] = {}
    for name, count in partitions.items():
        if bulk and (len(bulk) == _TOPICS_AT_ONCE or sum(bulk.values()) + count > _PARTITIONS_AT_ONCE):
            yield bulk
            bulk = {}
        bulk[name] = count
    if bulk:
        yield bulk


def _refusal(count: int, target_count: int, source: Mapping[str, str], target: Mapping[str, str]) -> str:
    """Return the reason why the topic cannot be copied, or an empty string if it can."""
    if target_count < count:
        return f"it has {count} partitions in the source but {target_count} in the target: add partitions in the target"
    if target["message.timestamp.type"] != "CreateTime":
        return "the target would replace timestamps: set its message.timestamp.type to CreateTime"
    if _limit(target) < _limit(source):
        return (
            f"the source accepts messages of up to {_limit(source)} bytes, but the target accepts only up to "
            f"{_limit(target)} bytes: raise max.message.bytes in the target"
        )
    return ""


def _limit(config: Mapping[str, str]) -> int:
    return int(config["max.message.bytes"])
