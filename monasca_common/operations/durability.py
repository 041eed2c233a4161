# SPDX-License-Identifier: Apache-2.0
"""Finds settings and states of topics that can lose acknowledged messages or prevent writes.

Each finding states the risk and the remedy in one sentence. Producers of this package wait for all in-sync replicas
(acks=all), and refuse options that would change this.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from monasca_common.kafka import Admin
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.verdict import LagVerdict, group_lag


class Severity(enum.Enum):
    """The severity of a finding. The value is its meaning."""

    ERROR = "messages are lost or will soon be lost, one failure can lose them, or they cannot be written or read now"
    WARNING = "one more failure prevents writes or turns the finding into an error"


_WARNINGS = frozenset({"no_spare_copy", "under_replicated"})  # findings of all other rules are errors
_TEXTS = {
    "one_copy": "there is one replica: if its broker loses its disk, the messages are lost; raise the replication "
    "factor to 3",
    "never_writable": "min.insync.replicas is {least}, but there are {copies} replicas: depending on their version, "
    "brokers refuse every write, or writes while a replica is behind; lower it below {copies}, or add replicas",
    "no_spare_copy": "min.insync.replicas is {least}, the number of replicas: if one broker stops, writes are refused; "
    "add a replica",
    "leader_alone": "min.insync.replicas is 1: while the followers are behind, the leader acknowledges messages that "
    "no other replica has; they are lost if the leader fails; set it to 2",
    "unclean_election": "unclean.leader.election.enable is true: an out-of-sync replica may become leader, and "
    "acknowledged messages that it lacks are discarded; set it to false",
    "offline": "there is no leader: writes and reads fail, and messages that exist only on stopped "
    "brokers are lost unless these brokers return; start them",
    "writes_refused": "fewer replicas are in sync than min.insync.replicas: writes are refused; start the stopped "
    "brokers",
    "under_replicated": "a replica is behind, or its broker is down; start the broker, and check its disk and network",
    "truncated": "group {group} has committed offsets {truncated:,} beyond the end of the log: an out-of-sync replica "
    "became leader, or the topic was recreated, and acknowledged messages are lost; see `lag show`",
    "deleted_unread": "{deleted:,} messages were deleted by retention before group {group} had read them: raise "
    "retention.ms or retention.bytes, and see `lag show`",
    "retention_near": "group {group} reads so slowly that retention deletes unread messages in {seconds:,.0f} s: raise "
    "retention.ms or retention.bytes now, then make the group faster",
}


@dataclass(frozen=True, slots=True)
class TopicDurability:
    """Settings and replicas of a topic. Item i of each tuple belongs to partition i; the numbers are broker ids."""

    name: str
    leaders: tuple[int | None, ...]
    replicas: tuple[tuple[int, ...], ...]
    in_sync: tuple[tuple[int, ...], ...]
    min_in_sync: int
    unclean_election: bool

    @property
    def copies(self) -> int:
        """The number of replicas of the partition with the fewest replicas."""
        return min(map(len, self.replicas), default=0)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. ``rule``: a short, stable name. ``partitions``: the affected partitions; empty for the whole topic."""

    topic: str
    severity: Severity
    rule: str
    partitions: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, topic: str, rule: str, partitions: Iterable[int] = (), **facts: object) -> Finding:
        severity = Severity.WARNING if rule in _WARNINGS else Severity.ERROR
        return cls(topic, severity, rule, tuple(partitions), _TEXTS[rule].format(**facts))


def topic_durability(admin: Admin, topics: Iterable[str]) -> list[TopicDurability]:
    """Describe existing topics, ordered by name. Raises `TransportError`."""
    names = sorted(set(topics))
    configs = admin.topic_configs(names)
    return [
        TopicDurability(
            name=name,
            leaders=described.leaders,
            replicas=described.replicas,
            in_sync=described.in_sync,
            min_in_sync=int(configs[name]["min.insync.replicas"]),
            unclean_election=configs[name]["unclean.leader.election.enable"] == "true",
        )
        for name, described in sorted((admin.describe_topics(names) if names else {}).items())
    ]


def durability_findings(topic: TopicDurability) -> list[Finding]:
    """Return the findings about a topic, errors first."""
    found = [Finding.of(topic.name, rule, copies=topic.copies, least=topic.min_in_sync) for rule in _settings(topic)]
    found += [Finding.of(topic.name, rule, numbers) for rule, numbers in _replicas(topic).items() if numbers]
    return sorted(found, key=lambda each: each.severity is not Severity.ERROR)


def _settings(topic: TopicDurability) -> list[str]:
    copies, least = topic.copies, topic.min_in_sync
    if copies == 1:
        return ["one_copy"]
    rules = {
        "never_writable": least > copies,
        "no_spare_copy": least == copies,
        "leader_alone": least < 2,
        "unclean_election": topic.unclean_election,
    }
    return [rule for rule, applies in rules.items() if applies]


def _replicas(topic: TopicDurability) -> dict[str, list[int]]:
    numbers = range(len(topic.leaders))
    offline = [number for number in numbers if topic.leaders[number] is None]
    behind = [each for each in numbers if len(topic.in_sync[each]) < len(topic.replicas[each]) and each not in offline]
    refused = [number for number in behind if len(topic.in_sync[number]) < topic.min_in_sync]
    lagging = [number for number in behind if number not in refused]
    return {"offline": offline, "writes_refused": refused, "under_replicated": lagging}


def group_retention_findings(group: str, partitions: Mapping[TopicPartition, LagVerdict]) -> Iterator[Finding]:
    """Yield the findings about each topic that the group reads, by name. ``partitions``: verdicts by partition."""
    lags: dict[str, list[LagVerdict]] = defaultdict(list)
    for partition, lag in partitions.items():
        lags[partition.topic].append(lag)
    for topic in sorted(lags):
        yield from retention_findings(topic, group, group_lag(lags[topic]))


def retention_findings(topic: str, group: str, lag: LagVerdict) -> Iterator[Finding]:
    """Yield the findings about messages that retention deletes unread. ``lag``: the group's lag in this topic."""
    if lag.truncated:
        yield Finding.of(topic, "truncated", group=group, truncated=lag.truncated)
    if lag.deleted:
        yield Finding.of(topic, "deleted_unread", group=group, deleted=lag.deleted)
    elif lag.expires_soon:
        yield Finding.of(topic, "retention_near", group=group, seconds=lag.lost_in_seconds or 0.0)
