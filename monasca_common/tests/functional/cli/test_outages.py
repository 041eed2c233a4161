# SPDX-License-Identifier: Apache-2.0
"""Commands and services of operators while a broker is frozen or absent, and after it returns."""

import multiprocessing
import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.cli import main
from monasca_common.kafka import TopicPartition, open_producer
from monasca_common.kafka.errors import RetriableError
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
from monasca_common.tests.functional.cli.cluster_case import SECONDS
from monasca_common.tests.kafka_cluster import KafkaClusterFixture
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import Waiting

# The exit status of each command if no broker responds.
_COMMANDS = {
    "lag list": 2,
    "lag show --group g": 2,
    "topic list": 2,
    "topic show metrics": 2,
    "topic tail metrics": 2,
    "topic sample metrics": 2,
    "topic create x --partitions 1 --execute": 2,
    "durability check": 2,
    "audit show": 2,
    "mirror verify": 2,
    "offsets show --group g --topic metrics --kept-in kafka": 1,
    "offsets reset --group g --topic metrics --kept-in kafka --to-latest --execute": 1,
    "dlq list": 1,
    "dlq show metrics.dlq/0/0": 1,
    "dlq replay --execute": 1,
    "dlq purge --all --execute": 1,
}
_SERVICES = ("lag serve", "audit serve", "audit count")
_CONFIGURATION = """
[kafka]
bootstrap_servers = {servers}
[lag]
interval_seconds = 1
[mirror]
topics = metrics
[mirror_target]
bootstrap_servers = {servers},127.0.0.1:1
[monitoring]
durability_check = off
[database]
connection = sqlite:///{folder}/monasca.sqlite
"""


class Child:
    """A command in a forked child of this process, so that all modules are already imported."""

    def __init__(self, folder, line, config):
        self.line = line
        self._path = folder.join(line.replace(" ", "_").replace("/", "_"))
        forking = multiprocessing.get_context("fork")
        self.process = forking.Process(target=self._run, args=([*line.split(), "--config-file", config],))
        self.process.start()

    def _run(self, arguments):
        with open(self._path, "w", buffering=1) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.stdout = sys.stderr = file
            try:
                status = main.main(arguments)
            except SystemExit as ended:
                status = ended.code
        os._exit(status)

    def text(self):
        """Return the output so far."""
        path = Path(self._path)
        return path.read_text() if path.exists() else ""

    def ended(self):
        """Wait for the end, and return the exit status and the output."""
        self.process.join(SECONDS)
        return self.process.exitcode, self.text()

    def end(self):
        self.process.kill()
        self.process.join()


@periodic("outages of all commands take two minutes; unit tests cover the errors")
class TestOutages(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir())
        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.audit.service._INTERVAL_SECONDS", 1.0))

    def start(self, lines, servers):
        text = _CONFIGURATION.format(servers=servers, folder=self.folder.path)
        config = self.create_tempfiles([("outage", text)], ".conf")[0]
        children = [Child(self.folder, line, config) for line in lines]
        for child in children:
            self.addCleanup(child.end)
        return children

    def committed(self, admin):
        try:
            admin.alter_group_offsets("late", {TopicPartition("metrics", 0): 0})
        except RetriableError:
            return False
        return True

    def assert_each_reports_the_outage(self, servers):
        for child in self.start(_COMMANDS, servers):
            status, text = child.ended()
            self.assertEqual(_COMMANDS[child.line], status, (child.line, text))
            self.assertIn(f"monasca-common {' '.join(child.line.split()[:2])}".removesuffix(" --"), text)
            self.assertNotIn("Traceback", text, child.line)

    def test_each_command_reports_absent_brokers(self):
        with closing(socket.socket()) as listener:
            listener.bind(("127.0.0.1", 0))
            self.assert_each_reports_the_outage(f"127.0.0.1:{listener.getsockname()[1]}")

    def test_each_command_reports_a_frozen_broker_and_services_outlive_it(self):
        cluster = self.useFixture(KafkaClusterFixture()).cluster
        servers = cluster.direct_options()["bootstrap.servers"]
        for topic in ("metrics", "metrics.dlq", "monasca-audit", "monasca-lag"):
            cluster.create_topic(topic, 1)
        with open_producer(ProducerSettings(ConnectionSettings(servers))) as producer:
            producer.publish("metrics", [b"1"]).raise_for_undelivered()
        services = self.start(_SERVICES, servers)
        serving = {child.line: child for child in services}
        for child in services:
            self.wait_until(lambda child=child: "started" in child.text(), child.line)
        cluster.node(1).freeze()
        self.assert_each_reports_the_outage(servers)
        self.wait_until(lambda: "the lag survey failed" in serving["lag serve"].text(), "a failed survey")
        self.assertEqual([None] * len(services), [child.process.exitcode for child in services])
        cluster.node(1).thaw()
        seen = len(serving["lag serve"].text())
        self.wait_until(lambda: self.committed(cluster.admin), "a commit by the coordinator, which comes back later")
        self.wait_until(lambda: "group late is STOP" in serving["lag serve"].text()[seen:], "a survey after the outage")
        for child in services:
            os.kill(child.process.pid, signal.SIGTERM)
        for child in services:
            status, text = child.ended()
            self.assertNotIn("Traceback", text, child.line)
            self.assertEqual(0, status, (child.line, text))
