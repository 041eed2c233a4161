# SPDX-License-Identifier: Apache-2.0
"""The base of the tests of published services: a service as a process with Kafka, which is killed and started again."""

import subprocess
import uuid
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import fixtures
import psutil
from oslotest import base

from monasca_common.kafka import client_factory
from monasca_common.tests.functional.processes import kill_group, start_process
from monasca_common.tests.functional.services.environments import environment
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting


class ServiceProcess:
    """A running service including its forked processes."""

    def __init__(self, process, log):
        self.process = process
        self.log = log
        self.may_end = False

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        """Send SIGKILL to all of its processes."""
        self.may_end = True
        kill_group(self.process)
        self.process.wait(PATIENCE_SECONDS)

    def terminate(self):
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return self.wait_for_end()

    def wait_for_end(self):
        """Wait for a service that ends by itself, and return its exit status."""
        self.may_end = True
        return self.process.wait(PATIENCE_SECONDS)

    def children(self):
        return psutil.Process(self.process.pid).children(recursive=True)


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
        # These clients query the group and never join it.
        self._admin = confluent_kafka.admin.AdminClient(self.cluster.direct_options())
        self._reader = confluent_kafka.Consumer({**self.cluster.direct_options(), "group.id": self.group})
        self.addCleanup(self._reader.close)

    def publish(self, topic, messages):
        """Publish all messages and wait for their acknowledgements."""
        self.assertEqual(0, self.producer.publish(topic, list(messages), timeout=PATIENCE_SECONDS))

    def ends(self, topic):
        """Return the end of the log of each partition."""
        return {
            one.partition: self._reader.get_watermark_offsets(one, timeout=PATIENCE_SECONDS)[1]
            for one in self._partitions(topic)
        }

    def is_read(self, topic):
        """Return whether the group has committed all messages that existed when its commits were read."""
        committed = self._reader.committed(self._partitions(topic), timeout=PATIENCE_SECONDS)
        return self.ends(topic) == {one.partition: max(0, one.offset) for one in committed}

    def has_settled(self, members):
        """Return whether the group has this number of members and each has an assignment."""
        [asked] = self._admin.describe_consumer_groups([self.group], request_timeout=PATIENCE_SECONDS).values()
        group = asked.result(PATIENCE_SECONDS)
        return group.state is confluent_kafka.ConsumerGroupState.STABLE and len(group.members) == members

    def _partitions(self, topic):
        numbers = self._reader.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
        return [confluent_kafka.TopicPartition(topic, number) for number in numbers]

    def start(self, program, configuration, name):
        """Start the program with a file of this configuration. ``name``: the name of its log."""
        path = self.folder / f"{name}.conf"
        path.write_text(configuration, encoding="utf-8")
        log = self.folder / f"{name}.log"
        command = [self.environment.program(program), "--config-file", path]
        running = ServiceProcess(start_process(self, command, log, stdin=subprocess.DEVNULL, cwd=self.folder), log)
        self.running.append(running)
        return running

    def wait_until(self, condition, what):
        """Wait until the condition is true. Fails if a service ends that the test did not stop."""

        def came_about():
            ended = [each.log.name for each in self.running if not each.may_end and each.process.poll() is not None]
            self.assertEqual([], ended, "ended by themselves before the expected event")
            return condition()

        super().wait_until(came_about, what)
