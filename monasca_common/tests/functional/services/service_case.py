# SPDX-License-Identifier: Apache-2.0
"""The base of the tests of published services: a service as a process with Kafka, which is killed and started again."""

import subprocess
import uuid
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.kafka import client_factory
from monasca_common.tests.functional.processes import RunningProcess, start_process
from monasca_common.tests.functional.services.environments import environment
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting


class ServiceCase(Waiting, base.BaseTestCase):
    service = ""  # a name of `environments.SERVICES`

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.environment = environment(cls.service)

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.cluster = self.fixture.cluster
        self.servers = self.cluster.client_options("admin")["bootstrap.servers"]
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.running = []
        self.group = f"group-{uuid.uuid4().hex[:12]}"
        self.producer = client_factory.get_kafka_producer(self.servers.split(","))
        self.addCleanup(self.producer.close, 5)

    def publish(self, topic, messages):
        """Publish all messages and wait for their acknowledgements."""
        self.assertEqual(0, self.producer.publish(topic, list(messages), timeout=PATIENCE_SECONDS))

    def start(self, program, configuration, name):
        """Start the program with a file of this configuration. ``name``: the name of its log."""
        path = self.folder / f"{name}.conf"
        path.write_text(configuration, encoding="utf-8")
        log = self.folder / f"{name}.log"
        command = [self.environment.program(program), "--config-file", path]
        running = RunningProcess(start_process(self, command, log, stdin=subprocess.DEVNULL, cwd=self.folder), log)
        self.running.append(running)
        return running

    def wait_until(self, condition, what):
        """Wait until the condition is true. Fails if a service ends that the test did not stop."""

        def came_about():
            ended = [each.log.name for each in self.running if not each.is_stopped and each.process.poll() is not None]
            self.assertEqual([], ended, "ended by themselves before the expected event")
            return condition()

        super().wait_until(came_about, what)
