# SPDX-License-Identifier: Apache-2.0
"""The durability check with Kafka: each fault, and a loss that it reports in advance (two replicas, one behind, an
unclean election)."""

import json
import time
import types
import uuid

import confluent_kafka
from confluent_kafka.admin import AdminClient
from oslotest import base

from monasca_common.devbroker.ports import HOST
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.message import TopicPartition
from monasca_common.tests.command import run_main
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

_MESSAGES = 50
_SETTINGS = types.MappingProxyType({"replica.lag.time.max.ms": "1500"})  # time after which a replica counts as behind
_HOUR_MS = 3_600_000
_UNSAFE = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}


@periodic("three nodes; the unit tests cover each rule, and TestEveryCommand runs the check")
class TestDurabilityCheck(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(3, config=_SETTINGS))
        self.cluster = self.fixture.cluster
        self.admin = self.cluster.admin
        self.group = f"reads-{uuid.uuid4().hex[:12]}"

    def check(self, *arguments):
        """Return the exit status and the findings of each topic."""
        servers = self.cluster.direct_options()["bootstrap.servers"]
        config = self.create_tempfiles([("check", f"[kafka]\nbootstrap_servers = {servers}\n")], ".conf")[0]
        status, out, _ = run_main("durability", "check", "--config-file", config, "-f", "json", *arguments)
        return status, {(row["topic"], row["rule"]) for row in json.loads(out)}

    def test_risks_for_acknowledged_messages_are_found_before_a_loss(self):
        safe = self.fixture.topic(replication_factor=3)
        unsafe = self.fixture.topic(replication_factor=2, config=_UNSAFE)
        self.wait_for(0, set(), safe)
        unsafely = {(unsafe, "leader_alone"), (unsafe, "unclean_election")}
        self.wait_for(1, unsafely, safe, unsafe)
        self.read_up_to(_MESSAGES, unsafe)  # created now, because half of the cluster is down later
        self.lose_messages_of(unsafe)
        self.wait_for(1, unsafely | {(unsafe, "under_replicated"), (unsafe, "truncated")}, unsafe)

    def test_each_fault_is_named_by_its_rule(self):
        sound = self.fixture.topic(replication_factor=3)
        single = self.fixture.topic(3, replication_factor=1)
        pair = self.fixture.topic(3, replication_factor=2)
        strict = self.fixture.topic(3, replication_factor=2, config={"min.insync.replicas": "3"})
        late = self.fixture.topic(replication_factor=3, config={"retention.ms": str(_HOUR_MS)})
        shortened = self.fixture.topic(replication_factor=3)
        self.produce(late, timestamp=round(time.time() * 1000) - _HOUR_MS * 5 // 6)
        self.produce(shortened)
        self.read_up_to(0, late, shortened)
        self.admin.delete_records({TopicPartition(shortened, 0): 3})
        topics = (sound, single, pair, strict, late, shortened)
        found = {
            (single, "one_copy"),
            (pair, "no_spare_copy"),
            (strict, "never_writable"),
            (late, "retention_near"),
            (shortened, "deleted_unread"),
        }
        self.wait_for(1, found, *topics)
        self.cluster.nodes[0].terminate()
        found |= {(single, "offline"), (pair, "writes_refused"), (strict, "writes_refused")}
        found |= {(topic, "under_replicated") for topic in (sound, late, shortened)}
        self.wait_for(1, found, *topics)

    def wait_for(self, status, findings, *topics):
        """Wait until the check has these findings, because brokers learn of a change one after the other."""
        given = [word for topic in topics for word in ("--topic", topic)]
        seen = []

        def is_found():
            seen[:] = self.check(*given)
            return seen == [status, findings]

        self.wait_until(is_found, lambda: f"{findings}, but {seen}")

    def read_up_to(self, offset, *topics):
        """Return the committed offset of a group without members."""
        self.admin.alter_group_offsets(self.group, {TopicPartition(topic, 0): offset for topic in topics})

    def lose_messages_of(self, topic):
        """Publish messages that are acknowledged while the follower is behind, then kill the leader, so that the
        follower becomes leader."""
        described = self.admin.describe_topic(topic)
        (leader,) = described.leaders
        (follower,) = set(described.replicas[0]) - {leader}
        leading, following = self.cluster.node(leader), self.cluster.node(follower)
        following.freeze()
        self.wait_until(lambda: self.partition_at(leading, topic).isrs == [leader], "the follower fell behind")
        self.produce(topic)
        leading.kill()
        following.thaw()
        self.wait_until(
            lambda: self.partition_at(following, topic).leader == follower, "the out-of-sync replica became leader"
        )
        self.wait_until(lambda: self.end(topic) == 0, "its log has none of the messages")

    def produce(self, topic, **options):
        """Publish messages, and check that all of them are acknowledged."""
        acknowledged = []
        settings = {**self.cluster.direct_options(), "acks": "all", "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer(settings)
        for number in range(_MESSAGES):
            producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: acknowledged.append(error), **options)
        self.assertEqual(0, producer.flush(PATIENCE_SECONDS))
        self.assertEqual([None] * _MESSAGES, acknowledged)

    def end(self, topic):
        """Return the end of the log, or ``None`` while the leader is unknown."""
        partition = TopicPartition(topic, 0)
        try:
            return self.admin.end_offsets([partition], timeout=1.0)[partition]
        except RetriableError:
            return None

    def partition_at(self, node, topic):
        """Return the only partition of a topic according to this node, because other nodes can be frozen or killed."""
        address = {"bootstrap.servers": f"{HOST}:{node.ports.internal}"}
        client = AdminClient({**self.cluster.direct_options(), **address, "log_level": 0})
        return client.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions[0]
