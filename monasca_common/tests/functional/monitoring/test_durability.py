# SPDX-License-Identifier: Apache-2.0
"""The classic loss on a real Kafka: two copies, one behind, an unclean election; and the check that names it before."""

import json

import confluent_kafka
import fixtures
from oslotest import base

from monasca_common.cli import main
from monasca_common.devbroker.fixtures import KafkaClusterFixture
from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS, Waiting

_MESSAGES = 50
_LAG_MS = 1500  # after which a replica counts as behind
_UNSAFE = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}


class TestDurabilityCheck(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(KafkaClusterFixture(3, config={"replica.lag.time.max.ms": str(_LAG_MS)}))
        self.cluster = self.fixture.cluster
        self.admin = self.cluster.admin

    def check(self, *arguments):
        """The exit status, and the findings of each topic."""
        out = self.useFixture(fixtures.StringStream("stdout")).stream
        servers = self.cluster.direct_options()["bootstrap.servers"]
        config = self.create_tempfiles([("check", f"[kafka]\nbootstrap_servers = {servers}\n")], ".conf")[0]
        with fixtures.MonkeyPatch("sys.stdout", out):
            status = main.main(["durability", "check", "--config-file", config, "-f", "json", *arguments])
        out.seek(0)
        return status, {(row["topic"], row["rule"]) for row in json.loads(out.read())}

    def test_what_would_lose_acknowledged_messages_is_named_before_it_does(self):
        safe = self.fixture.topic(replication_factor=3)
        unsafe = self.fixture.topic(replication_factor=2, config=_UNSAFE)
        status, found = self.check("--topic", safe)
        self.assertEqual((0, set()), (status, found))
        status, found = self.check("--topic", safe, "--topic", unsafe)
        self.assertEqual((1, {(unsafe, "leader_alone"), (unsafe, "unclean_election")}), (status, found))
        self.lose_messages_of(unsafe)

    def lose_messages_of(self, topic):
        """They are acknowledged while the follower is behind; then the leader dies, and the follower leads."""
        described = self.admin.describe_topic(topic)
        (leader,) = described.leaders
        (follower,) = set(described.replicas[0]) - {leader}
        nodes = {node.id: node for node in self.cluster.nodes}
        nodes[follower].freeze()
        self.wait_until(lambda: self.seen(topic, "in_sync") == (leader,), "the follower fell behind")
        self.produce(topic)
        nodes[leader].kill()
        nodes[follower].thaw()
        self.wait_until(lambda: self.seen(topic, "leaders") == follower, "the replica that was behind leads")
        partition = TopicPartition(topic, 0)
        self.assertEqual({partition: 0}, self.admin.end_offsets([partition]))

    def produce(self, topic):
        """All of them are acknowledged."""
        acknowledged = []
        options = {**self.cluster.direct_options(), "acks": "all", "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer(options)
        for number in range(_MESSAGES):
            producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: acknowledged.append(error))
        self.assertEqual(0, producer.flush(PATIENCE_SECONDS))
        self.assertEqual([None] * _MESSAGES, acknowledged)

    def seen(self, topic, what):
        """Of its only partition; ``None`` while the node that is asked is the one that is frozen, or killed."""
        try:
            return getattr(self.admin.describe_topic(topic, timeout=1.0), what)[0]
        except TransportError:
            return None
