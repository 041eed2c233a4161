# SPDX-License-Identifier: Apache-2.0
"""``monasca-common durability check`` with a simulated cluster."""

import csv
import io
import json

import yaml

from monasca_common.cli import durability
from monasca_common.kafka import TopicPartition, plugins
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.transport.admin import TopicDescription
from monasca_common.operations.lag.verdict import Commit, PartitionState
from monasca_common.tests.unit.cli.command_case import CommandCase

_PARTITION = TopicPartition("metrics", 0)


class Cluster:
    """Three brokers, and topics with three replicas each. ``state``: the survey's result for the only group at a given
    time."""

    def __init__(self):
        self.topics = ("metrics",)
        self.least = "2"
        self.in_sync = (0, 1, 2)
        self.state = None

    def partition_counts(self):
        return dict.fromkeys(self.topics, 1)

    def topic_configs(self, names):
        config = {"min.insync.replicas": self.least, "unclean.leader.election.enable": "false"}
        return dict.fromkeys(names, config)

    def describe_topics(self, names):
        return {name: TopicDescription(name, "id", 1, (0,), ((0, 1, 2),), (self.in_sync,)) for name in names}


class Survey:
    """Replaces `LagSurvey`."""

    def __init__(self, cluster, *_, **__):
        self._state = cluster.state

    def groups(self):
        return ["slow"]

    def scan(self, groups, now_ms, topics, history):
        is_read = self._state is not None and "metrics" in topics
        return {"slow": {_PARTITION: self._state(now_ms)}} if is_read else {}


class DurabilityCheckTest(CommandCase):
    command = ("durability", "check")
    configuration = "[kafka]\nbootstrap_servers = kafka:9092\n"

    def setUp(self):
        super().setUp()
        self.cluster = Cluster()
        self.patch(plugins, "load_admin", lambda *_: self.cluster)
        self.patch(durability, "LagSurvey", Survey)
        self.patch(durability, "read_history", lambda *_, **__: None)

    def found(self, *arguments):
        """Return the exit status, and the topic and rule of each finding."""
        status, self.report, err = self.run_command("-f", "json", *arguments)
        self.assertNotIn("not known", err)
        return status, [(row["topic"], row["rule"]) for row in json.loads(self.report)]

    def test_a_safe_cluster_has_no_finding(self):
        self.assertEqual((0, []), self.found())

    def test_warnings_end_with_status_0_unless_strict(self):
        self.cluster.least = "3"
        expected = [("metrics", "no_spare_copy")]
        self.assertEqual((0, expected), self.found())
        self.assertEqual((1, expected), self.found("--strict"))
        self.cluster.least = "1"
        self.assertEqual((1, [("metrics", "leader_alone")]), self.found())

    def test_internal_topics_are_checked(self):
        self.cluster.topics = ("metrics", "__consumer_offsets")
        self.cluster.least = "1"
        expected = [(topic, "leader_alone") for topic in sorted(self.cluster.topics)]
        self.assertEqual((1, expected), self.found())

    def test_an_unknown_lag_is_an_error_and_other_findings_are_reported(self):
        def fail(*_, **__):
            raise RetriableError("broker 1 is silent")

        self.patch(durability, "read_history", fail)
        self.cluster.in_sync = (0, 1)
        status, out, err = self.run_command("-f", "json")
        self.assertEqual((1, ["under_replicated"]), (status, [row["rule"] for row in json.loads(out)]))
        self.assertIn("broker 1 is silent", err)

    def test_retention_is_compared_with_the_groups_of_a_topic(self):
        for state, status, rules in (
            (_state(first=0, end=9), 0, []),
            (_state(first=7, end=9), 1, ["deleted_unread"]),
            (_state(first=0, end=3), 1, ["truncated"]),
            (_state(first=0, end=9, unread_for_ms=1000, retention_ms=100_000), 0, []),
            (_state(first=0, end=9, unread_for_ms=90_000, retention_ms=100_000), 1, ["retention_near"]),
        ):
            self.cluster.state = state
            self.assertEqual((status, [("metrics", rule) for rule in rules]), self.found())
            self.assertTrue(not rules or "group slow " in self.report)

    def test_the_history_is_that_of_lag_serve(self):
        asked = []
        self.patch(durability, "read_history", lambda _admin, _connection, topic, **_: asked.append(topic))
        self.run_command(text=f"{self.configuration}[lag]\ntopic = kept-elsewhere\n")
        self.assertEqual(["kept-elsewhere"], asked)

    def test_each_format_has_the_findings(self):
        self.cluster.least = "1"
        for name, parse in (("yaml", yaml.safe_load), ("csv", lambda out: list(csv.DictReader(io.StringIO(out))))):
            status, out, _ = self.run_command("-f", name)
            self.assertEqual((1, ["leader_alone"]), (status, [row["rule"] for row in parse(out)]))


def _state(*, first, end, unread_for_ms=None, retention_ms=None):
    """Return the state of a group that committed offset 5 some seconds ago and reads nothing."""

    def state(now_ms):
        since_ms = None if unread_for_ms is None else now_ms - unread_for_ms
        commits = (Commit(now_ms - 20_000, 5, 5), Commit(now_ms - 10_000, 5, 5))
        return PartitionState(first, end, commits, unread_since_ms=since_ms, retention_ms=retention_ms)

    return state
