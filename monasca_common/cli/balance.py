# SPDX-License-Identifier: Apache-2.0
"""``monasca-common balance``: how the leaders of partitions are spread over the brokers, and how they get back.

The first copy of a partition is its preferred leader. When a broker dies others take over, and what it led comes back
to it by an election. Sizes on disk are not shown: the client has no request for them.
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cliff.lister import Lister

from monasca_common.cli.command import NOTHING_FOUND, PARTLY_DONE, ClusterCommand, add_execute, positive
from monasca_common.kafka import Admin, TopicPartition

_PERCENT = 10  # as brokers tolerate by default
_SETTLE_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.2


@dataclass(slots=True)
class LeaderBalance:
    """Partitions by broker: those that it leads, should lead, has a copy of, and whose copy is behind.

    ``elsewhere``: those that another broker leads in place of the preferred one. ``led_by_none``: how many have no
    leader.
    """

    leads: Counter[int] = field(default_factory=Counter)
    preferred: Counter[int] = field(default_factory=Counter)
    copies: Counter[int] = field(default_factory=Counter)
    behind: Counter[int] = field(default_factory=Counter)
    away: Counter[int] = field(default_factory=Counter)
    elsewhere: list[TopicPartition] = field(default_factory=list)
    led_by_none: int = 0

    @classmethod
    def of(cls, admin: Admin, topics: Iterable[str]) -> LeaderBalance:
        balance = cls()
        wanted = sorted(topics)
        for name, topic in (admin.describe_topics(wanted) if wanted else {}).items():
            for number, (leader, replicas) in enumerate(zip(topic.leaders, topic.replicas, strict=True)):
                in_sync = topic.in_sync[number]
                balance.copies.update(replicas)
                balance.behind.update(set(replicas).difference(in_sync))
                balance.preferred[replicas[0]] += 1
                if leader is None:
                    balance.led_by_none += 1
                    continue
                balance.leads[leader] += 1
                if leader != replicas[0]:
                    balance.away[replicas[0]] += 1
                    balance.elsewhere += [TopicPartition(name, number)] if replicas[0] in in_sync else []
        return balance

    def percent_away(self, broker: int) -> int:
        """How much of what this broker should lead is led by others."""
        preferred = self.preferred[broker]
        return round(100 * self.away[broker] / preferred) if preferred else 0

    def is_within(self, percent: int) -> bool:
        return not self.led_by_none and all(self.percent_away(broker) <= percent for broker in self.preferred)


class BrokerBalance(ClusterCommand, Lister):
    """Show how many partitions each broker leads and should lead; with --execute, elect the preferred leaders.

    The exit status is 0 where at most --percent of what a broker should lead is led by others and each partition has a
    leader, else 1. For example, after a broker came back:
    monasca-common balance --execute
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--topic", default="*", metavar="T", help="only topics with this name; * and ? stand for other characters"
        )
        parser.add_argument(
            "--percent",
            type=positive,
            default=_PERCENT,
            metavar="N",
            help="how much of what a broker should lead may be led by others; too small: each restart is a fault; too "
            "large: few brokers do the work of all (default: %(default)s)",
        )
        add_execute(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterator[tuple[int, ...]]]:
        admin, _ = self.cluster(parsed_args)
        topics = fnmatch.filter(admin.partition_counts(), parsed_args.topic)
        if not topics and parsed_args.topic != "*":
            self.complain(f"--topic {parsed_args.topic}: there is no such topic")
            self._status = NOTHING_FOUND
        balance = LeaderBalance.of(admin, topics)
        if parsed_args.execute and balance.elsewhere:
            refused = self._elect(admin, balance)
            balance = _settled(admin, topics, refused)
            self._status = PARTLY_DONE if refused else self._status
        elif balance.elsewhere:
            self.note_dry_run(parsed_args)
        if balance.led_by_none:
            self.complain(f"{balance.led_by_none} partitions have no leader")
        self._status = self._status or int(not balance.is_within(parsed_args.percent))
        brokers = sorted({*admin.broker_ids(), *balance.copies})
        rows = (
            (
                broker,
                balance.leads[broker],
                balance.preferred[broker],
                balance.percent_away(broker),
                balance.copies[broker],
                balance.behind[broker],
            )
            for broker in brokers
        )
        return ("broker", "leads", "should_lead", "percent_away", "copies", "copies_behind"), rows

    def _elect(self, admin: Admin, balance: LeaderBalance) -> set[TopicPartition]:
        """The partitions whose election was refused."""
        refusals = {
            partition: error
            for partition, error in admin.elect_preferred_leaders(balance.elsewhere).items()
            if error is not None
        }
        elected = len(balance.elsewhere) - len(refusals)
        self.complain(f"{elected} of {len(balance.elsewhere)} partitions have their preferred leader again")
        for partition, error in sorted(refusals.items()):
            self.complain(f"{partition.topic}/{partition.partition}: {error}")
        return set(refusals)


def _settled(admin: Admin, topics: Iterable[str], refused: set[TopicPartition]) -> LeaderBalance:
    """As it is once the brokers have heard of the new leaders, or soon after."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        balance = LeaderBalance.of(admin, topics)
        if set(balance.elsewhere) <= refused or time.monotonic() > deadline:
            return balance
        time.sleep(_LOOK_AGAIN_SECONDS)
