# SPDX-License-Identifier: Apache-2.0
"""The development broker, which all other functional tests use."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

import confluent_kafka
import fixtures
import psutil
from oslotest import base

from monasca_common.devbroker import BrokerFailed, InvalidCluster, KafkaCluster, PortTaken
from monasca_common.devbroker.ports import HOST
from monasca_common.devbroker.supervisor import wait_until
from monasca_common.kafka.errors import AuthenticationError, TransportError
from monasca_common.kafka.transport.admin import Admin
from monasca_common.tests.functional.administration import Permission, allow, revoke, set_topic_config
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.kafka_cluster import KafkaClusterFixture, SharedKafkaCluster
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

PAGE = Path(__file__).parents[4] / "doc" / "source" / "contributor" / "devbroker.rst"
# Prints the processes that it started, then waits until the test ends it.
PARENT = """
import json, sys, time
from monasca_common.devbroker import KafkaCluster
cluster = KafkaCluster()
cluster.start()
{meanwhile}
print(json.dumps({{"broker": cluster.node(1).pid, "folder": str(cluster.node(1).folder.parent),
                   "supervisor": cluster._supervisor.pid}}), flush=True)
time.sleep(600)
"""


def produce(cluster, topic, count, **options):
    """Send ``count`` messages one by one, and return their errors (``None``: delivered)."""
    results = []
    settings = {**cluster.client_options(), "linger.ms": 0, "log_level": 0, "enable.idempotence": True, **options}
    producer = confluent_kafka.Producer(settings)
    for number in range(count):
        producer.produce(topic, str(number).encode(), on_delivery=lambda error, _: results.append(error))
        producer.flush(PATIENCE_SECONDS)
    return results


def read(cluster, topic):
    """Return the values in a topic of one partition."""
    return [message.value() for message in read_topic(cluster, topic)]


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestOneNode(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.cluster = self.fixture.cluster

    def test_produced_messages_can_be_read(self):
        topic = self.fixture.topic()
        self.assertEqual([None] * 3, produce(self.cluster, topic, 3))
        self.assertEqual([b"0", b"1", b"2"], read(self.cluster, topic))

    def test_a_frozen_node_does_not_respond_and_continues_after_it_thaws(self):
        topic = self.fixture.topic()
        node = self.cluster.node(1)
        node.freeze()
        self.assertRaises(TransportError, self.cluster.admin.wait_for_brokers, 1, timeout=1)
        self.assertTrue(node.running)
        node.thaw()
        self.assertEqual([None], produce(self.cluster, topic, 1))

    def test_a_killed_node_keeps_its_data_and_its_port(self):
        topic = self.fixture.topic()
        produce(self.cluster, topic, 1)
        node, servers = self.cluster.node(1), self.cluster.bootstrap_servers
        node.kill()
        self.assertFalse(node.running)
        node.restart()
        self.assertEqual(servers, self.cluster.bootstrap_servers)
        self.assertEqual([b"0"], read(self.cluster, topic))

    def test_a_recreated_topic_has_another_id(self):
        admin = self.cluster.admin
        topic = self.fixture.topic()
        before = admin.topic_ids([topic, "no-such-topic"], timeout=10)
        admin.delete_topic(topic)
        self.cluster.create_topic(topic, 3)
        after = admin.topic_ids([topic], timeout=10)
        self.assertEqual([topic], list(before))
        self.assertNotEqual(before, after)
        self.assertEqual(3, admin.describe_topic(topic).partitions)

    def test_the_limit_of_a_topic_can_be_read_and_changed(self):
        topic = self.fixture.topic(config={"max.message.bytes": "5000"})
        self.assertEqual(5000, self.cluster.admin.max_message_bytes((topic,), timeout=10)[topic])
        set_topic_config(self.cluster.admin, topic, {"max.message.bytes": "6000"})
        self.wait_until(lambda: self.cluster.admin.max_message_bytes((topic,), timeout=10)[topic] == 6000)


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestNothingIsLeftBehind(Waiting, base.BaseTestCase):
    def start_parent(self, meanwhile=""):
        parent = subprocess.Popen([sys.executable, "-c", PARENT.format(meanwhile=meanwhile)], stdout=subprocess.PIPE)
        self.addCleanup(parent.wait)
        self.addCleanup(parent.stdout.close)
        self.addCleanup(parent.kill)
        started = json.loads(parent.stdout.readline())
        self.addCleanup(shutil.rmtree, started["folder"], ignore_errors=True)
        return parent, started

    def assert_gone(self, started):
        for process in (started["broker"], started["supervisor"]):
            self.wait_until(lambda pid=process: not psutil.pid_exists(pid), f"the end of {process}")
        self.wait_until(lambda: not Path(started["folder"]).exists(), f"the removal of {started['folder']}")

    def test_no_process_remains_after_the_parent_is_killed(self):
        parent, started = self.start_parent()
        self.assertTrue(psutil.pid_exists(started["broker"]))
        parent.kill()
        self.assert_gone(started)

    def test_no_process_remains_after_the_parent_is_killed_while_a_node_is_frozen(self):
        parent, started = self.start_parent("cluster.node(1).freeze()")
        parent.kill()
        self.assert_gone(started)

    def test_no_process_remains_after_the_parent_is_killed_while_its_forked_child_continues(self):
        parent, started = self.start_parent("import os; os.fork() or time.sleep(200) or os._exit(0)")
        for process in psutil.Process(parent.pid).children():
            self.addCleanup(self.end, process)
        parent.kill()
        self.assert_gone(started)

    def end(self, process):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    def test_no_process_remains_after_the_owner_of_the_brokers_is_killed(self):
        _, started = self.start_parent()
        os.kill(started["supervisor"], signal.SIGKILL)
        self.wait_until(lambda: not psutil.pid_exists(started["broker"]))

    def test_no_process_remains_after_a_stop(self):
        with KafkaCluster() as cluster:
            broker, folder = cluster.node(1).pid, cluster.node(1).folder
        self.assertFalse(psutil.pid_exists(broker))
        self.assertFalse(folder.exists())
        cluster.stop()


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestStart(base.BaseTestCase):
    def test_a_data_folder_keeps_its_data_and_refuses_other_settings(self):
        with tempfile.TemporaryDirectory() as folder:
            with KafkaCluster(data_dir=folder) as cluster:
                cluster.create_topic("kept")
                produce(cluster, "kept", 2)
            with KafkaCluster(data_dir=folder) as cluster:
                self.assertEqual([b"0", b"1"], read(cluster, "kept"))
            refusal = self.assertRaises(InvalidCluster, KafkaCluster(data_dir=folder, sasl=True).start)
            self.assertIn("sasl=False", str(refusal))

    def test_a_port_in_use_is_refused(self):
        with socket.create_server((HOST, 0)) as other:
            port = other.getsockname()[1]
            refusal = self.assertRaises(PortTaken, KafkaCluster(port=port).start)
        self.assertIn(str(port), str(refusal))

    def test_records_with_old_times_are_kept(self):
        self.assertFalse(self.loses_an_old_record({}, 3))
        self.assertTrue(self.loses_an_old_record({"log.retention.ms": "1000"}, PATIENCE_SECONDS))

    def loses_an_old_record(self, config, seconds):
        often = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "0"}
        with KafkaCluster(config=often | config) as cluster:
            cluster.create_topic("old")
            producer = confluent_kafka.Producer(cluster.client_options())
            producer.produce("old", b"1", partition=0, timestamp=1000)
            producer.flush()
            partition = confluent_kafka.TopicPartition("old", 0)
            consumer = confluent_kafka.Consumer({**cluster.client_options(), "group.id": "g"})
            with contextlib.closing(consumer):
                return wait_until(lambda: consumer.get_watermark_offsets(partition)[0] == 1, seconds)

    def test_the_environment_has_options_for_java(self):
        self.useFixture(fixtures.EnvironmentVariable("KAFKA_OPTS", "-Da.word='two words' -Dof=the-test"))
        with KafkaCluster() as cluster:
            arguments = psutil.Process(cluster.node(1).pid).cmdline()
        self.assertIn("-Da.word=two words", arguments)
        self.assertIn("-Dof=the-test", arguments)

    def test_a_broker_that_cannot_start_reports_the_reason(self):
        cluster = KafkaCluster(config={"log.retention.hours": "never"})
        self.assertIn("log.retention.hours", str(self.assertRaises(BrokerFailed, cluster.start)))


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestProxy(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(proxied=True))
        self.cluster, self.proxy = self.fixture.cluster, self.fixture.proxy
        self.topic = self.fixture.topic()

    def test_cut_responses_are_counted_and_idempotence_prevents_duplicates(self):
        fault = self.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, times=3))
        self.assertEqual([None] * 5, produce(self.cluster, self.topic, 5))
        self.assertEqual(3, fault.taken)
        self.assertEqual(5, len(read(self.cluster, self.topic)))

    def test_the_test_on_the_page_passes(self):
        [program] = re.findall(r"code-block:: python\n\n((?:   .*\n|\n)+)", PAGE.read_text())
        defined = {"base": base, "produce": lambda _, topic: produce(self.cluster, topic, 3)}
        exec(textwrap.dedent(program), defined)
        result = unittest.TestResult()
        defined["TestOrders"]("test_an_answer_is_lost").run(result)
        self.assertEqual((1, []), (result.testsRun, result.errors + result.failures))

    def test_without_idempotence_a_cut_response_duplicates_the_message(self):
        self.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, times=1))
        produce(self.cluster, self.topic, 1, **{"enable.idempotence": False})
        self.assertEqual([b"0", b"0"], read(self.cluster, self.topic))

    def test_a_request_that_is_cut_never_reaches_the_broker(self):
        fault = self.proxy.add(Fault.cut_request(ApiKey.PRODUCE, times=1))
        produce(self.cluster, self.topic, 1, **{"enable.idempotence": False})
        self.assertEqual([b"0"], read(self.cluster, self.topic))
        self.assertEqual(1, fault.taken)

    def test_a_dropped_response_leaves_the_client_waiting_for_its_own_time_out(self):
        fault = self.proxy.add(Fault.drop_answer(ApiKey.PRODUCE, times=1))
        started = time.monotonic()
        self.assertEqual([None], produce(self.cluster, self.topic, 1, **{"socket.timeout.ms": 1000}))
        self.assertGreater(time.monotonic() - started, 1.0)
        self.assertEqual(1, fault.taken)
        self.assertEqual([b"0"], read(self.cluster, self.topic))

    def test_a_delayed_response_arrives_late(self):
        fault = self.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=1.5, times=1))
        started = time.monotonic()
        self.assertEqual([None], produce(self.cluster, self.topic, 1))
        self.assertGreater(time.monotonic() - started, 1.5)
        self.assertEqual(1, fault.taken)

    def test_a_held_response_arrives_when_the_fault_is_removed(self):
        held = self.proxy.add(Fault.hold_answer(ApiKey.PRODUCE))
        settings = {**self.cluster.client_options(), "linger.ms": 0}
        producer = confluent_kafka.Producer(settings)
        producer.produce(self.topic, b"0")
        self.wait_until(lambda: held.taken == 1)
        self.assertEqual(1, producer.flush(0.2))
        self.proxy.remove(held)
        self.assertEqual(0, producer.flush(60))

    def test_a_predicate_selects_requests_by_topic(self):
        other = self.fixture.topic()
        fault = self.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, where=lambda r: other.encode() in r.frame))
        produce(self.cluster, self.topic, 2)
        self.assertEqual(0, fault.taken)

    def test_randomly_lost_pipelined_responses_neither_lose_nor_duplicate_messages(self):
        fault = self.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, probability=0.1, seed=7))
        settings = {
            **self.cluster.client_options(),
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 10,
            "log_level": 0,
        }
        producer = confluent_kafka.Producer(settings)
        for number in range(2000):
            producer.produce(self.topic, str(number).encode())
            producer.poll(0)
        self.assertEqual(0, producer.flush(60))
        self.assertGreater(fault.taken, 5)
        self.assertEqual([str(number).encode() for number in range(2000)], read(self.cluster, self.topic))

    def test_a_killed_node_refuses_connections_through_its_proxy_until_it_restarts(self):
        self.cluster.node(1).kill()
        client = Admin(self.cluster.client_options())
        self.assertRaises(TransportError, client.wait_for_brokers, 1, timeout=0.5)
        self.cluster.node(1).restart()
        client.wait_for_brokers(1, timeout=PATIENCE_SECONDS)


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestThreeNodes(Waiting, base.BaseTestCase):
    def test_a_cluster_survives_the_loss_of_one_node(self):
        fixture = self.useFixture(KafkaClusterFixture(nodes=3))
        topic = fixture.topic()
        self.wait_until(lambda: self.standing(fixture, topic)[1] == 3)
        leader = self.standing(fixture, topic)[0]
        fixture.cluster.node(leader).kill()
        self.assertEqual([None] * 3, produce(fixture.cluster, topic, 3))
        self.wait_until(lambda: self.standing(fixture, topic)[0] not in (leader, None))
        fixture.cluster.node(leader).restart()
        self.wait_until(lambda: self.standing(fixture, topic)[1] == 3)

    def standing(self, fixture, topic):
        """Return the leader of the partition and the number of in-sync replicas, according to the brokers."""
        try:
            description = fixture.cluster.admin.describe_topic(topic)
        except TransportError:
            return None, 0  # the broker does not know the new topic, or the killed node was the controller
        return description.leaders[0], len(description.in_sync[0])


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestSecurity(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(tls=True, sasl=True, acl=True))
        self.cluster = self.fixture.cluster

    def test_a_password_over_tls_is_accepted(self):
        self.assertEqual([None], produce(self.cluster, self.fixture.topic(), 1))

    def test_a_wrong_password_is_distinguished_from_a_silent_broker(self):
        options = {**self.cluster.client_options("monasca"), "sasl.password": "wrong"}
        self.assert_distinguished(AuthenticationError, Admin(options))

    def test_a_wrong_authority_is_distinguished_from_a_silent_broker(self):
        wrong = {"ssl.ca.location": str(self.cluster.certificates / "other-ca.pem")}
        client = Admin({**self.cluster.client_options("monasca"), **wrong})
        self.assert_distinguished(AuthenticationError, client)

    def assert_distinguished(self, kind, client):
        """On a busy machine, the broker's first response can take longer than one wait."""

        def reported():
            try:
                client.wait_for_brokers(1, timeout=1)
            except TransportError as error:
                return isinstance(error, kind)
            return self.fail("the client was accepted")

        self.wait_until(reported)

    def allow_write(self, topic):
        permission = Permission("User:monasca", "write", "topic", topic)
        allow(self.cluster.admin, permission)
        self.addCleanup(revoke, self.cluster.admin, permission)  # other tests share the cluster

    def test_only_granted_permissions_are_allowed(self):
        topic = self.fixture.topic()
        as_monasca = self.cluster.client_options("monasca")
        (denied,) = produce(self.cluster, topic, 1, **as_monasca, **{"enable.idempotence": False})
        self.assertEqual("TOPIC_AUTHORIZATION_FAILED", denied.name())
        self.allow_write(topic)
        self.assertEqual([None], produce(self.cluster, topic, 1, **as_monasca))
        self.assertEqual(1, len(read(self.cluster, topic)))

    def test_a_certificate_is_also_a_principal(self):
        topic = self.fixture.topic()
        self.allow_write(topic)
        options = {**self.cluster.mutual_tls_options("monasca"), "enable.idempotence": True}
        producer = confluent_kafka.Producer(options)
        producer.produce(topic, b"0")
        self.assertEqual(0, producer.flush(60))


@periodic("tests the development broker itself; the normal run starts it in TestBrokerStart")
class TestTlsAlone(base.BaseTestCase):
    def test_a_client_that_trusts_the_authority_connects(self):
        fixture = self.useFixture(KafkaClusterFixture(tls=True))
        self.assertEqual("SSL", fixture.cluster.client_options()["security.protocol"])
        self.assertEqual([None], produce(fixture.cluster, fixture.topic(), 1))
