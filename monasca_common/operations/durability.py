# SPDX-License-Identifier: Apache-2.0
"""Would this cluster lose an acknowledged message? Judged by what topics are set to, by their replicas, and by the raw
options of producers.

Each finding tells in one sentence how a message is lost, or why none can be written, and what to change. Producers of
this package wait for all in-sync replicas (acks=all), and refuse to open with options that would change it.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from monasca_common.kafka import Admin
from monasca_common.kafka.message import TopicPartition
from monasca_common.operations.lag.verdict import LagVerdict, group_lag

_ALL_ACKS = ("all", "-1")
_TRUE = ("true", "t", "1")  # as librdkafka reads a boolean


class Severity(enum.Enum):
    """The value says what it means."""

    ERROR = (
        "messages are lost or soon will be, one failure can lose or double them, or they cannot be written or read now"
    )
    WARNING = "one more failure makes it an error, or stops those who write"


@dataclass(frozen=True, slots=True)
class TopicDurability:
    """What a topic is set to, and where its copies are. Position i of each tuple is partition i, and the numbers
    in it are broker ids."""

    name: str
    leaders: tuple[int | None, ...]
    replicas: tuple[tuple[int, ...], ...]
    in_sync: tuple[tuple[int, ...], ...]
    min_in_sync: int
    unclean_election: bool

    @property
    def copies(self) -> int:
        """The fewest that a partition has."""
        return min(map(len, self.replicas), default=0)


@dataclass(frozen=True, slots=True)
class Finding:
    """``topic``: empty where the configuration of producers is concerned, and so all of them. ``rule``: a short name
    that stays the same. ``partitions``: those concerned; empty for the whole topic."""

    topic: str
    severity: Severity
    rule: str
    partitions: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that brokers create when it is first needed, by the values of these settings of theirs."""

    name: str
    copies: str
    min_in_sync: str
    unclean_election: str | None  # ``None``: it never has one


#: Where Kafka keeps the offsets of groups and the states of transactions.
INTERNAL_TOPICS = (
    InternalTopic(
        "__consumer_offsets",
        "offsets.topic.replication.factor",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    ),
    InternalTopic(
        "__transaction_state",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        None,
    ),
)


def topic_durability(admin: Admin, topics: Iterable[str]) -> list[TopicDurability]:
    """Ask the brokers about topics that exist, in the order of their names. Raises `TransportError`."""
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
    """What is wrong with a topic, errors first."""
    found = [*_settings(topic), *_replicas(topic)]
    return sorted(found, key=lambda each: each.severity is not Severity.ERROR)


def internal_topic_findings(topic: InternalTopic, brokers: Mapping[int, Mapping[str, str]]) -> list[Finding]:
    """What will be wrong with a topic that does not exist yet, by the worst settings of any broker: each may be the one
    that creates it. ``brokers``: the settings of those that are there, by id."""
    copies = min(int(settings[topic.copies]) for settings in brokers.values())
    to_be = TopicDurability(
        topic.name,
        leaders=(0,),
        replicas=(tuple(range(copies)),),
        in_sync=(tuple(range(copies)),),
        min_in_sync=min(int(settings[topic.min_in_sync]) for settings in brokers.values()),
        unclean_election=any(settings.get(topic.unclean_election or "") == "true" for settings in brokers.values()),
    )
    settings = ", ".join(filter(None, (topic.copies, topic.min_in_sync, topic.unclean_election)))
    found = durability_findings(to_be)
    if (most := max(int(each[topic.copies]) for each in brokers.values())) > len(brokers):
        text = (
            f"it is to have {most} copies, and there are {len(brokers)} brokers: it cannot be created, and who needs "
            "it waits; start the other brokers, or lower the replication factor"
        )
        found.insert(0, Finding(topic.name, Severity.ERROR, "too_few_brokers", (), text))
    where = f"it does not exist yet: these are settings of the brokers, {settings}"
    return [replace(each, text=f"{each.text} ({where})") for each in found]


def producer_findings(options: Mapping[str, str]) -> Iterator[Finding]:
    """How messages are lost or doubled with these raw options of producers, by librdkafka's names."""

    def finding(rule: str, text: str) -> Finding:
        ours = "in producer_options in group [kafka]: leave it out, because services do not start with it"
        return Finding("", Severity.ERROR, rule, (), f"{text} ({ours})")

    acks = options.get("acks", "all")
    if acks.lower() not in _ALL_ACKS:
        yield finding(
            "acks",
            f"acks={acks}: a leader acknowledges messages that only it has; if it fails before its followers have "
            "them, they are lost, whatever min.insync.replicas is",
        )
    idempotence = options.get("enable.idempotence", "true")
    if idempotence.lower() not in _TRUE:
        yield finding(
            "idempotence",
            f"enable.idempotence={idempotence}: when an answer is lost, the message is written again: it is in the log "
            "twice, or behind later ones",
        )


def group_retention_findings(group: str, partitions: Mapping[TopicPartition, LagVerdict]) -> Iterator[Finding]:
    """Those of each topic that the group reads, in the order of their names. ``partitions``: the verdict on each."""
    lags: dict[str, list[LagVerdict]] = defaultdict(list)
    for partition, lag in partitions.items():
        lags[partition.topic].append(lag)
    for topic in sorted(lags):
        yield from retention_findings(topic, group, group_lag(lags[topic]))


def retention_findings(topic: str, group: str, lag: LagVerdict) -> Iterator[Finding]:
    """Whether retention removes messages before this group has read them. ``lag``: the group's in this topic."""
    if lag.truncated:
        text = (
            f"group {group} has committed offsets {lag.truncated:,} beyond the end of the log: a replica that was "
            "behind became the leader, or the topic was recreated, and what was acknowledged is lost; see `lag show`"
        )
        yield Finding(topic, Severity.ERROR, "truncated", (), text)
    if lag.deleted:
        text = f"{lag.deleted:,} messages were removed by retention before group {group} had read them: raise "
        yield Finding(
            topic,
            Severity.ERROR,
            "deleted_unread",
            (),
            f"{text}retention.ms or retention.bytes, and see `lag show`",
        )
    elif lag.expires_soon:
        text = (
            f"group {group} reads so slowly that retention removes messages unread in {lag.lost_in_seconds or 0:,.0f} "
            "s: raise retention.ms or retention.bytes now, then make the group faster"
        )
        yield Finding(topic, Severity.ERROR, "retention_near", (), text)


def _settings(topic: TopicDurability) -> Iterator[Finding]:
    def finding(severity: Severity, rule: str, text: str) -> Finding:
        return Finding(topic.name, severity, rule, (), text)

    copies, least = topic.copies, topic.min_in_sync
    if copies == 1:
        yield finding(
            Severity.ERROR,
            "one_copy",
            "there is one copy of each message: when its broker loses its disk, the messages are lost; raise the "
            "replication factor to 3",
        )
        return
    if least > copies:
        yield finding(
            Severity.ERROR,
            "never_writable",
            f"min.insync.replicas is {least}, and there are {copies} copies: every write is refused; lower it below "
            f"{copies}, or add copies",
        )
    elif least == copies:
        yield finding(
            Severity.WARNING,
            "no_spare_copy",
            f"min.insync.replicas is {least}, as many as there are copies: when one broker stops, nobody can write; "
            "add a copy",
        )
    if least < 2:
        yield finding(
            Severity.ERROR,
            "leader_alone",
            "min.insync.replicas is 1: while its followers are behind, a leader acknowledges messages that only it "
            "has; if it fails then, they are lost; set it to 2",
        )
    if topic.unclean_election:
        yield finding(
            Severity.ERROR,
            "unclean_election",
            "unclean.leader.election.enable is true: a replica that is behind may become the leader, and what it has "
            "not is thrown away, acknowledged or not; set it to false",
        )


def _replicas(topic: TopicDurability) -> Iterator[Finding]:
    def finding(severity: Severity, rule: str, partitions: Iterable[int], text: str) -> Iterator[Finding]:
        concerned = tuple(partitions)
        if concerned:
            yield Finding(topic.name, severity, rule, concerned, text)

    everything = range(len(topic.leaders))
    offline = {number for number in everything if topic.leaders[number] is None}
    behind = [
        each for each in everything if len(topic.in_sync[each]) < len(topic.replicas[each]) and each not in offline
    ]
    refused = {number for number in behind if len(topic.in_sync[number]) < topic.min_in_sync}
    yield from finding(
        Severity.ERROR,
        "offline",
        sorted(offline),
        "there is no leader: nobody can write or read, and what only the stopped brokers have is lost if they do not "
        "come back; start them",
    )
    yield from finding(
        Severity.ERROR,
        "writes_refused",
        sorted(refused),
        "fewer replicas are in sync than min.insync.replicas: writes are refused until brokers come back",
    )
    yield from finding(
        Severity.WARNING,
        "under_replicated",
        [number for number in behind if number not in refused],
        "a replica is behind or its broker is down: there is a copy less than there should be; start the broker, and "
        "look at its disk and network",
    )
