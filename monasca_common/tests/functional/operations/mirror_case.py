# SPDX-License-Identifier: Apache-2.0
"""Two clusters with one node each, and a mirror between them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid

import confluent_kafka
import fixtures
from oslotest import base

from monasca_common.audit.settings import AuditSettings
from monasca_common.devbroker.fixtures import SharedKafkaCluster
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.mirror.mirror import Mirror
from monasca_common.operations.mirror.settings import MirrorSettings
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.topic_log import read_topic
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS, Waiting

SECONDS = 60.0


class MirrorCase(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster())
        self.source = self.fixture.cluster
        # Shared clusters with different settings are different clusters; this setting has no effect.
        self.target = self.useFixture(SharedKafkaCluster(config={"log.cleaner.threads": "1"})).cluster
        self.topic = self.fixture.topic(2)
        self.name = f"mirror-{uuid.uuid4().hex[:12]}"
        self.other_groups = ""

    def audited_by(self):
        """Return the settings of an audit in the source, and add them to all configuration files from now on."""
        folder, topic = self.useFixture(fixtures.TempDir()).path, self.fixture.topic()
        options = {"topic": topic, "bucket_seconds": 60, "grace_seconds": 0, "folder": folder}
        lines = "".join(f"{name} = {value}\n" for name, value in options.items())
        servers = self.connection(self.source).bootstrap_servers
        self.other_groups = f"[kafka]\nbootstrap_servers = {servers}\n[audit]\nenabled = true\n{lines}"
        return AuditSettings(enabled=True, **options)

    def connection(self, cluster):
        return ConnectionSettings(cluster.direct_options()["bootstrap.servers"])

    def settings(self, *topics, **options):
        connections = self.connection(self.source), self.connection(self.target)
        return MirrorSettings(*connections, topics or (self.topic,), self.name, **options)

    def put(self, count, *, topic=None, first=0, transactional_id=None, cluster=None):
        """Publish numbered messages, alternately to two partitions."""
        options = {} if transactional_id is None else {"transactional.id": transactional_id}
        producer = confluent_kafka.Producer(
            {**(cluster or self.source).direct_options(), **options, "log_level": 0, "linger.ms": 0}
        )
        if transactional_id is not None:
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
        for number in range(first, first + count):
            producer.produce(
                topic or self.topic,
                b"%d" % number,
                key=b"key %d" % (number % 3),
                partition=number % 2,
                timestamp=1_700_000_000_000 + number,
                headers=[("message-id", b"id %d" % number)],
            )
        if transactional_id is not None:
            producer.commit_transaction(SECONDS)
        self.assertEqual(0, producer.flush(SECONDS))

    def read(self, cluster, topic=None):
        """Return all committed messages as (partition, key, value, headers, timestamp), ordered by partition."""
        topic = topic or self.topic
        messages = read_topic(cluster, topic, cluster.admin.partition_counts().get(topic, 0))
        found = [(each.partition(), each.key(), each.value(), each.headers(), each.timestamp()) for each in messages]
        return sorted(found, key=lambda each: each[0])

    def wait_until_copied(self, count, topic=None):
        self.wait_until(lambda: len(self.read(self.target, topic)) >= count, "the copies")

    @each_once()
    def assert_the_same(self, topic=None):
        self.assertEqual(self.read(self.source, topic), self.read(self.target, topic))

    @contextlib.contextmanager
    def mirror(self, *topics, audit=None, **options):
        """Run a mirror on a thread within the block. Its failure is raised at the end of the block."""
        running = RunningMirror(self.settings(*topics, **options), audit)
        try:
            yield running
        finally:
            running.stop()

    def program(self, *, mutant="none", kill_at=None):
        """Start the command as a process."""
        text = (
            f"[mirror_source]\nbootstrap_servers = {self.connection(self.source).bootstrap_servers}\n"
            f"[mirror_target]\nbootstrap_servers = {self.connection(self.target).bootstrap_servers}\n"
            f"[mirror]\nname = {self.name}\ntopics = {self.topic}\n"
            f"[monitoring]\ndurability_check = off\n{self.other_groups}"
        )
        path = self.create_tempfiles([(uuid.uuid4().hex, text)], ".conf")[0]
        armed = {"MONASCA_FAIL_POINTS": f"{kill_at[0]}=kill@{kill_at[1]}"} if kill_at else {}
        module = "monasca_common.tests.functional.operations.mirror_program"
        process = subprocess.Popen(
            [sys.executable, "-m", module, mutant, "mirror", "run", "--config-file", path],
            env={**os.environ, **armed},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.kill)
        return process

    def run_and_kill(self, point, nth, mutant="none"):
        process = self.program(mutant=mutant, kill_at=(point, nth))
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(-signal.SIGKILL, process.returncode, errors)

    def run_to(self, count, mutant="none"):
        """Run until this number of messages is copied. SIGTERM then ends the process with 0."""
        process = self.program(mutant=mutant)
        self.wait_until_copied(count)
        self.stop(process)

    def stop(self, process):
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        self.assertEqual(0, process.returncode, errors)


class RunningMirror:
    def __init__(self, settings, audit):
        self.status = MirrorStatus(SystemClock())
        self.failure = None
        self._mirror = Mirror(settings, self.status, SystemClock(), audit=audit)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._mirror.run()
        except Exception as error:
            self.failure = error

    @property
    def ended(self):
        return not self._thread.is_alive()

    def stop(self):
        self._mirror.stop()
        self._thread.join(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure
