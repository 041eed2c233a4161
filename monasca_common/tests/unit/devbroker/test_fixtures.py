# SPDX-License-Identifier: Apache-2.0


import random
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from fixtures import MonkeyPatch
from oslotest import base

from monasca_common.devbroker import ports
from monasca_common.devbroker.errors import BrokerFailed
from monasca_common.devbroker.supervisor import Supervisor
from monasca_common.kafka.errors import TransportError
from monasca_common.tests import kafka_cluster


class StubCluster:
    """A cluster without nodes, which counts its starts and stops."""

    def __init__(self, nodes, **settings):
        self.settings = settings
        self.starts = self.stops = 0
        self.nodes = ()
        self.proxy = self.admin = mock.Mock()

    def start(self):
        self.starts += 1

    def stop(self):
        self.stops += 1


class TestSharedKafkaCluster(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        stubs = dict.fromkeys(("KafkaCluster", "ProxiedKafkaCluster"), StubCluster)
        for name, value in {**stubs, "_clusters": {}, "atexit": mock.Mock()}.items():
            self.useFixture(MonkeyPatch(f"{kafka_cluster.__name__}.{name}", value))

    def shared(self, **settings):
        """Return the cluster of a test that requests these settings."""
        with kafka_cluster.SharedKafkaCluster(**settings) as fixture:
            return fixture.cluster

    def test_tests_with_the_same_settings_have_the_same_cluster(self):
        first, second = self.shared(tls=True), self.shared(tls=True)
        self.assertIs(first, second)
        self.assertEqual((1, 0), (first.starts, first.stops))

    def test_a_third_kind_of_cluster_replaces_the_least_recently_used_one(self):
        plain, proxied = self.shared(), self.shared(proxied=True)
        self.assertIs(plain, self.shared())
        self.shared(sasl=True)
        self.assertEqual((0, 1), (plain.stops, proxied.stops))
        self.assertIsNot(proxied, self.shared(proxied=True))

    def test_a_cluster_that_does_not_recover_fails_one_test_and_is_replaced(self):
        fixture = kafka_cluster.SharedKafkaCluster()
        fixture.setUp()
        broken = fixture.cluster
        broken.admin.wait_for_brokers.side_effect = TransportError("no broker responds")
        self.assertRaises(BrokerFailed, fixture.cleanUp)
        self.assertEqual(1, broken.stops)
        self.assertIsNot(broken, self.shared())

    def test_a_topic_waits_until_the_controller_admits_the_broker_again(self):
        fenced = TransportError("all brokers are fenced", name="INVALID_REPLICATION_FACTOR")
        with kafka_cluster.SharedKafkaCluster() as fixture, mock.patch.object(kafka_cluster.time, "sleep"):
            fixture.cluster.create_topic = mock.Mock(side_effect=[fenced, fenced, None])
            self.assertEqual(fixture.topic(3), fixture.cluster.create_topic.call_args.args[0])
            fixture.cluster.create_topic.side_effect = TransportError("exists", name="TOPIC_ALREADY_EXISTS")
            self.assertRaises(TransportError, fixture.topic)
            with mock.patch.object(kafka_cluster, "_FENCED_SECONDS", 0.0):
                fixture.cluster.create_topic.side_effect = fenced
                self.assertRaises(TransportError, fixture.topic)


_TAKE = """
import random, sys
from monasca_common.devbroker import ports
random.SystemRandom.sample = lambda *_: [int(text) for text in sys.argv[1:]]
print(ports.free_ports(1)[0], flush=True)
sys.stdin.read()
"""


class TestFreePorts(base.BaseTestCase):
    def offer(self, *candidates):
        return mock.patch.object(random.SystemRandom, "sample", lambda *_: list(candidates))

    def test_a_port_is_returned_only_once(self):
        first, second = ports.free_ports(2)
        with self.offer(first, second):
            self.assertRaises(ports.PortTaken, ports.free_ports, 1)

    def test_a_removed_temporary_folder_is_not_needed(self):
        take = "from monasca_common.devbroker import ports; ports.free_ports(1)"
        program = [sys.executable, "-c", f"import tempfile; tempfile.tempdir = '/gone'; {take}"]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_ports_of_a_running_process_are_not_given_to_another(self):
        candidates = [port for port in random.sample(range(32_000, 32_700), 100) if ports.is_free(port)][:2]
        command = [sys.executable, "-c", _TAKE, *map(str, candidates)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            theirs = int(other.stdout.readline())
            with self.offer(*candidates):
                (ours,) = ports.free_ports(1)
        self.assertEqual(candidates, [theirs, ours])


class SupervisorTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.supervisor = Supervisor()
        self.addCleanup(self.supervisor.close)
        log = Path(self.create_tempfiles([("log", "")])[0])
        self.pid = self.supervisor.start([sys.executable, "-c", "import time; time.sleep(60)"], log=log)

    def interrupted_poll(self):
        """Poll with a Ctrl-C that arrives after the request is sent and before its response is read."""
        pipe = mock.Mock(readline=mock.Mock(side_effect=KeyboardInterrupt))
        with mock.patch.object(self.supervisor._child, "stdout", pipe):
            self.assertRaises(KeyboardInterrupt, self.supervisor.poll, self.pid)

    def test_the_response_of_an_interrupted_request_is_discarded(self):
        self.interrupted_poll()
        self.supervisor.signal(self.pid, signal.SIGKILL)
        while (status := self.supervisor.poll(self.pid)) is None:
            pass
        self.assertEqual(-signal.SIGKILL, status)

    def test_a_process_started_after_an_interrupt_has_its_own_process_id(self):
        self.interrupted_poll()
        self.interrupted_poll()
        log = Path(self.create_tempfiles([("other", "")])[0])
        other = self.supervisor.start([sys.executable, "-c", "raise SystemExit(7)"], log=log)
        self.assertNotEqual(self.pid, other)
        while (status := self.supervisor.poll(other)) is None:
            pass
        self.assertEqual(7, status)
