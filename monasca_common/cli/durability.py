# SPDX-License-Identifier: Apache-2.0
"""``monasca-common durability check``: find risks of losing acknowledged messages."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Sequence

from cliff.lister import Lister

from monasca_common.cli.command import ClusterCommand, add_topics
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.errors import ConfigurationError, TransportError
from monasca_common.operations.durability import (
    Finding,
    Severity,
    durability_findings,
    group_retention_findings,
    topic_durability,
)
from monasca_common.operations.lag.history import LagHistory, following, read_history
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.operations.settings import history_topic, lag_window

_READ_SECONDS = 30.0


class DurabilityCheck(ClusterCommand, Lister):
    """Show the risks of losing acknowledged messages by topic: replicas, leaders, settings, and slow consumers.

    The exit status is 1 if there is an error, and 2 if the brokers do not respond. For example, in a script that also
    fails if there are warnings:
    monasca-common durability check --topic metrics --strict -f json
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        add_topics(parser, "every topic, including internal topics")
        parser.add_argument("--strict", action="store_true", help="treat warnings as errors in the exit status")

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[tuple[str, ...], Iterator[tuple[str, str, str, str, str]]]:
        findings = sorted(self._findings(parsed_args), key=lambda each: each.severity is not Severity.ERROR)
        self._status |= any(parsed_args.strict or each.severity is Severity.ERROR for each in findings)
        return ("severity", "topic", "partitions", "rule", "finding"), map(_row, findings)

    def _findings(self, parsed_args: argparse.Namespace) -> Iterator[Finding]:
        conf, wanted = self.read(parsed_args), parsed_args.topic
        admin, connection = self.cluster(parsed_args)
        there = admin.partition_counts()
        topics = topic_durability(admin, _chosen(wanted, there))
        for topic in topics:
            yield from durability_findings(topic)
        try:
            window = lag_window(conf)
            survey = LagSurvey(admin, connection, window, timeout_seconds=_READ_SECONDS)
            history = read_history(admin, connection, history_topic(conf), timeout_seconds=_READ_SECONDS)
            led = [topic.name for topic in topics if None not in topic.leaders]
            yield from _late(survey, window, led, history or LagHistory())
        except TransportError as error:
            self.report(f"the lag of consumers is unknown: {error}")
            self._status = 1


def _late(survey: LagSurvey, window: LagWindow, topics: Iterable[str], history: LagHistory) -> list[Finding]:
    """Return the findings about each group."""
    now_ms = SystemClock().time_ms()
    judged = following(survey.scan(survey.groups(), now_ms, set(topics), history), now_ms, window).groups
    return [
        finding
        for group, partitions in judged.items()
        for finding in group_retention_findings(group, {each: known.lag for each, known in partitions.items()})
    ]


def _chosen(wanted: Sequence[str] | None, there: Collection[str]) -> list[str]:
    missing = sorted(set(wanted or ()) - set(there))
    if missing:
        raise ConfigurationError(f"--topic {missing[0]}: this topic does not exist: correct its name")
    return sorted(set(wanted or there) & set(there))


def _row(finding: Finding) -> tuple[str, str, str, str, str]:
    partitions = ",".join(map(str, finding.partitions))
    return finding.severity.name, finding.topic, partitions, finding.rule, finding.text
