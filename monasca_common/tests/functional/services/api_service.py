# SPDX-License-Identifier: Apache-2.0
"""The unmodified monasca-api 11.0.0 under gunicorn, with Kafka and InfluxDB."""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

import fixtures

from monasca_common.devbroker import KafkaCluster, ports
from monasca_common.tests.functional.api.api_case import ApiProcess
from monasca_common.tests.functional.kafka.producer_case import ProducerCase
from monasca_common.tests.functional.services.environments import environment
from monasca_common.tests.waiting import PATIENCE_SECONDS

TOPIC = "metrics"
PROJECT = "a-project"
PUBLISHED_PIPELINE = "request_id auth api"
# The headers that Keystone's middleware sets; most tests have a pipeline without the middleware.
IDENTITY = {"X-Project-Id": PROJECT, "X-Roles": "monasca-user"}

_CONFIGURATION = """\
[DEFAULT]
region = RegionOne
[database]
connection = sqlite:///{folder}/alarms.sqlite
[kafka]
uri = {servers}
events_topic = {events}
alarm_state_transitions_topic = metrics
[messaging]
driver = monasca_api.common.messaging.kafka_publisher:KafkaPublisher
[influxdb]
database_name = {database}
ip_address = 127.0.0.1
port = {influxdb_port}
user = nobody
password = none
"""
_PASTE = """\
[pipeline:main]
pipeline = {pipeline}
[app:api]
paste.app_factory = monasca_api.api.server:launch
[filter:auth]
paste.filter_factory = monasca_api.healthcheck.keystone_protocol:filter_factory
[filter:request_id]
paste.filter_factory = oslo_middleware.request_id:RequestId.factory
"""


class PublishedApi(ApiProcess):
    """A process with its own home folder, in which it looks for its configuration."""

    def __init__(self, folder, configuration, *, pipeline="request_id api"):
        (self.port,) = ports.free_ports(1)
        self.folder = Path(folder)
        self.log = self.folder / "api.log"
        (self.folder / "monasca-api.conf").write_text(configuration)
        (self.folder / "api-config.ini").write_text(_PASTE.format(pipeline=pipeline))
        command = [
            environment("monasca-api").program("gunicorn"), "--bind", f"127.0.0.1:{self.port}",
            "--worker-class", "gthread", "--threads", "8", "--no-control-socket",
            f"monasca_api.api.server:get_wsgi_app(config_base_path={folder!r})",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env={**os.environ, "HOME": str(self.folder)}
            )

    def kill(self):
        """Send SIGKILL to all of its processes."""
        group = [self.process, *self.workers()]
        for each in group:
            each.send_signal(signal.SIGKILL)
        for each in group:
            each.wait(PATIENCE_SECONDS)


class PublishedApiCase(ProducerCase):
    """``self.published_api()`` starts an API. Its code contains the name of the metrics topic, so tests of a cluster
    share this topic."""

    partitions = 2
    _prepared: ClassVar[list[KafkaCluster]] = []  # clusters that have the topic

    def setUp(self):
        super().setUp()
        if self.cluster not in self._prepared:
            self.cluster.create_topic(TOPIC, self.partitions)
            self._prepared.append(self.cluster)

    def start_published_api(self, *, more="", pipeline="request_id api", **changes):
        folder = self.useFixture(fixtures.TempDir(tempfile.gettempdir())).path
        values = {"events": TOPIC, "database": "mon", "influxdb_port": ports.free_ports(1)[0], **changes}
        configuration = _CONFIGURATION.format(folder=folder, servers=self.cluster.bootstrap_servers, **values) + more
        api = PublishedApi(folder, configuration, pipeline=pipeline)
        self.addCleanup(api.end)
        return api

    def published_api(self, **changes):
        return self.start_published_api(**changes).wait_until_ready()

    def logged(self, prefix):
        """Return the envelopes in the log whose metric names have this prefix."""
        envelopes = [json.loads(record.value) for record in self.log(TOPIC, self.partitions)]
        return [each for each in envelopes if each["metric"]["name"].startswith(prefix)]
