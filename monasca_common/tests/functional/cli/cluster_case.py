# SPDX-License-Identifier: Apache-2.0
"""Commands with Kafka: in this process, and as processes that can be killed."""

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import confluent_kafka

from monasca_common.kafka import failpoints
from monasca_common.tests.kafka_cluster import SharedKafkaCluster
from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.waiting import Waiting

SECONDS = 60.0


class ClusterCommandCase(Waiting, CommandCase):
    """Tests with equal settings share a cluster."""

    cluster_settings: Mapping[str, Any] = {}

    def setUp(self):
        super().setUp()
        self.fixture = self.useFixture(SharedKafkaCluster(**self.cluster_settings))
        self.cluster = self.fixture.cluster
        self.admin = self.cluster.admin
        self.own = uuid.uuid4().hex[:12]
        servers = self.cluster.direct_options()["bootstrap.servers"]
        self.configuration = f"[kafka]\nbootstrap_servers = {servers}\n"

    def start(self, *arguments, mutant="", fail_point=""):
        """Start the same command as a process. ``mutant``: a statement that first breaks the command."""
        program = f"import sys\n{mutant}\nfrom monasca_common.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        config = self.path_of(self.configuration)
        line = [sys.executable, "-c", program, *self.command, *arguments, "--config-file", config]
        environment = {**os.environ, **({failpoints.ENVIRONMENT_VARIABLE: fail_point} if fail_point else {})}
        process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def put(self, topic, *records, partition=0, timestamp_ms=0, **options):
        """Publish ``records``: key, value and headers. ``timestamp_ms``: 0 for the current time."""
        producer = confluent_kafka.Producer({**self.cluster.direct_options(), **options, "log_level": 0})
        for key, value, headers in records:
            while True:
                try:
                    producer.produce(topic, value, key, partition, headers=headers, timestamp=timestamp_ms)
                    break
                except BufferError:
                    producer.poll(0.1)
        self.assertEqual(0, producer.flush(SECONDS))
