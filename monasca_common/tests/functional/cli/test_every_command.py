# SPDX-License-Identifier: Apache-2.0
"""Every command and service on a cluster without topics that creates a topic at the first request for it."""

import signal
import types

import fixtures

from monasca_common.kafka import dead_letters
from monasca_common.tests.functional.cli.cluster_case import SECONDS, ClusterCommandCase
from monasca_common.tests.periodic import periodic

_LETTERS = "metrics.dlq"
_MISSING_TOPICS = (
    ("persister", "dead-letter topic 'alarm-state-transitions.dlq' cannot be used"),
    ("notification", "dead-letter topic"),
    ("lag serve", "topic monasca-lag, which stores the lag history, does not exist"),
    ("audit serve", "'monasca-audit', which does not exist"),
    ("mirror run", "reach the same cluster"),
)


class TestEveryCommand(ClusterCommandCase):
    cluster_settings = types.MappingProxyType({"config": {"auto.create.topics.enable": "true"}})  # Kafka's default

    def configure(self, text):
        servers = self.cluster.direct_options()["bootstrap.servers"]
        given = f"[kafka]\nbootstrap_servers = {servers}\n{text}"
        self.configuration = given

    def configure_with_database(self, text=""):
        path = self.useFixture(fixtures.TempDir()).join("rows.sqlite")
        self.configure(f"[database]\nconnection = sqlite:///{path}\n{text}")

    def test_without_topics_each_command_reports_the_missing_ones(self):
        other = f"{self.cluster.direct_options()['bootstrap.servers']},127.0.0.1:1"  # a different cluster by its name
        self.configure_with_database(f"[mirror]\ntopics = metrics\n[mirror_target]\nbootstrap_servers = {other}\n")
        self.wait_until(lambda: not self.topics(), "no topics")
        counting = self.start("audit", "count")
        for line, status, expected in (
            ("durability check --topic x", 2, "x: this topic does not exist"),
            ("topic list -f json", 0, "[]"),
            ("topic list --name x", 3, "x: this topic does not exist"),
            ("topic show x", 2, "x: this topic does not exist"),
            ("topic tail x", 2, "x: this topic does not exist"),
            ("topic sample x", 2, "x: this topic does not exist"),
            ("topic create x --partitions 1", 0, "x: can be created"),
            ("lag list --group g", 3, "g: this group does not exist"),
            ("lag show --group g", 2, "g: this group has no offset in any topic"),
            ("lag list", 0, "no history"),
            ("offsets show --group g --topic x --kept-in kafka", 1, "topic 'x' does not exist"),
            ("offsets reset --group g --topic x --kept-in kafka --to-latest --execute", 1, "topic 'x' does not exist"),
            ("dlq list", 0, f"{_LETTERS}: this topic does not exist"),
            ("dlq list --reason x", 3, "no pending dead letter is selected"),
            ("dlq show metrics.dlq/0/0", 3, f"there is no dead letter {_LETTERS}/0/0"),
            ("dlq replay", 0, f"{_LETTERS}: this topic does not exist"),
            ("dlq replay --execute", 0, f"{_LETTERS}: this topic does not exist"),
            ("dlq purge --all", 3, "no dead letter is selected"),
            ("dlq purge --all --execute", 3, "no dead letter is selected"),
            ("init --service api", 0, "metrics"),
            ("audit show", 2, "'monasca-audit', which does not exist"),
            ("mirror verify", 2, "has copied nothing"),
        ):
            found, out, err = self.run_command(*line.split())
            self.assertEqual((status, True), (found, expected in out + err), (line, out, err))
        _, err = counting.communicate(timeout=SECONDS)
        self.assertEqual((1, True), (counting.returncode, "there are no topics to count" in err), err)
        self.assertEqual(set(), self.topics())

    def topics(self):
        return {name for name in self.admin.partition_counts() if not name.startswith("__")}

    def test_a_dead_letter_of_a_missing_topic_stays_pending(self):
        letters = self.fixture.topic()
        self.addCleanup(self.admin.delete_topic, letters)
        self.put(letters, (None, b"1", [(dead_letters.ORIGIN_TOPIC, b"gone"), (dead_letters.ORIGIN_PARTITION, b"0")]))
        for more in ((), ("--execute",)):
            status, out, err = self.run_command("dlq", "replay", "--topic", letters, "--group", self.own, *more)
            self.assertEqual((1, True), (status, "there is no topic gone" in out), err)
        self.assertEqual({letters}, self.topics())

    @periodic("the normal run contains test_without_topics_each_command_reports_the_missing_ones")
    def test_a_service_creates_no_topic(self):
        other = f"{self.cluster.direct_options()['bootstrap.servers']},127.0.0.1:1"
        folder = self.useFixture(fixtures.TempDir()).path
        self.configure_with_database(
            f"[mirror]\ntopics = metrics\n[mirror_target]\nbootstrap_servers = {other}\n"
            f"[audit]\nenabled = true\nfolder = {folder}\n"
        )
        self.assertEqual(0, self.run_command("db", "upgrade")[0])
        for service, expected in _MISSING_TOPICS:
            process = self.start(*service.split())
            lines = []
            while (line := process.stderr.readline()) and expected not in line:
                lines.append(line)
            self.assertIn(expected, line, (service, lines))
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=SECONDS)
        self.assertEqual(set(), self.topics())

    def test_a_service_does_not_start_with_a_topic_of_one_replica(self):
        self.cluster.create_topic("metrics", 1)
        self.addCleanup(self.admin.delete_topic, "metrics")
        self.configure_with_database("[monitoring]\ndurability_check = refuse\n")
        persister = self.start("persister")
        out, err = persister.communicate(timeout=SECONDS)
        self.assertEqual((1, ""), (persister.returncode, out), err)
        for part in ("topic metrics: there is one replica", "durability_check in group [monitoring]"):
            self.assertIn(part, err)
