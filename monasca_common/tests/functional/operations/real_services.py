# SPDX-License-Identifier: Apache-2.0
"""Every service with Kafka, each with its own port for probes and Prometheus."""

import contextlib
import io
import json
import subprocess
import urllib.request
from pathlib import Path

import fixtures

from monasca_common.cli import main
from monasca_common.devbroker.fixtures import KafkaClusterFixture, SharedKafkaCluster
from monasca_common.devbroker.ports import free_ports
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.evaluate.gauges import EvaluationMetrics, lost_transitions
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.settings import JobStatusSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.functional.with_constants import command_with

#: The commands by the name of their readiness metric.
COMMANDS = {
    "api": ("api",),
    "persister": ("persister",),
    "notification": ("notification",),
    "lag": ("lag", "serve"),
    "audit": ("audit", "serve"),
    "audit_count": ("audit", "count"),
    "mirror": ("mirror", "run"),
    "dashboard": ("dashboard",),
}
EVALUATOR = "pipeline_evaluate"
_MADE = [word for service in ("api", "persister", "notification", "lag") for word in ("--service", service)]
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {source}
topic_check_seconds = 0
[mirror_target]
bootstrap_servers = {target}
[database]
connection = {url}
[monitoring]
durability_check = off
[api]
auth_strategy = noauth
noauth_tenant = tenant
port = {api_port}
status_port = {api}
[persister]
status_port = {persister}
[kafka_metrics]
max_wait_time_seconds = 0.01
[notification]
status_port = {notification}
[lag]
interval_seconds = 1
status_port = {lag}
[audit]
enabled = true
folder = {folder}/audit
grace_seconds = 6
status_port = {audit}
[audit_count]
status_port = {audit_count}
[mirror]
topics = {mirrored}
status_port = {mirror}
[dashboard]
login = none
interval_seconds = 1
port = {dashboard_port}
status_port = {dashboard}
"""


class RealServices(Waiting):
    """A mixin for a test case with ``self.folder``. ``ports``: the port of each service for Prometheus."""

    def start_services(self):
        """Start the services as processes, except the evaluator: this process serves its page, without Spark."""
        source = self.useFixture(KafkaClusterFixture()).cluster
        target = self.useFixture(SharedKafkaCluster())
        mirrored = target.topic()
        source.create_topic(mirrored, 1)
        names = [*COMMANDS, EVALUATOR, "api_port", "dashboard_port"]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.api = f"http://127.0.0.1:{self.ports.pop('api_port')}"
        url = f"sqlite:///{self.folder}/monasca.sqlite"
        self.configuration = Path(self.folder, "monasca.conf")
        self.configuration.write_text(
            _CONFIGURATION.format(
                source=source.direct_options()["bootstrap.servers"],
                target=target.cluster.direct_options()["bootstrap.servers"],
                mirrored=mirrored,
                url=url,
                folder=self.folder,
                api_port=self.api.rpartition(":")[2],
                **self.ports,
            )
        )
        del self.ports["dashboard_port"]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(0, main.main(["init", "--execute", *_MADE, "--config-file", str(self.configuration)]))
        self.processes = []
        self.addCleanup(self.stop_services)
        for service, words in COMMANDS.items():
            self.start_service(service, *words)
        self.serve_evaluator(url)

    def start_service(self, service, *words):
        # The API's metrics need an environment variable that the API sets before its imports.
        quick = {"monasca_common.audit.service._INTERVAL_SECONDS": 0.5} if service == "audit" else {}
        command = [*command_with(quick), *words, "--config-file", str(self.configuration)]
        with self.log_of(service).open("wb") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def stop_services(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE_SECONDS)

    def log_of(self, service):
        return Path(self.folder, f"{service}.log")

    def serve_evaluator(self, url):
        with OffsetStore(url).writing() as connection:
            watermark.save(connection, "evaluate", EvaluatorState(1, 0))
        status = JobStatusSettings(port=self.ports[EVALUATOR])
        gauges = EvaluationMetrics(url, "evaluate").registry
        watcher = self.useFixture(Entered(served("evaluate", status, JobWatcher(), gauges, lost_transitions()))).value
        watcher.tell(JobProgress(1, 1, 1.0, {"records": 1}, {"merge": 1.0}, (PartitionLag("metrics", 0, 1.0),)))

    def wait_until_ready(self):
        for service in self.ports:
            self.wait_until(
                lambda service=service: self.is_ready(service), lambda s=service: self.log_of(s).read_text()
            )

    def is_ready(self, service):
        try:
            self.page(service, "readyz")
        except OSError:  # or reports that it is not ready
            return False
        return True

    def page(self, service, path="metrics"):
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports[service]}/{path}", timeout=PATIENCE_SECONDS
        ) as answer:
            return answer.read().decode()

    def everything_served(self):
        return "".join(self.page(service) for service in self.ports)

    def post(self, count, now_ms):
        metrics = [
            {"name": "cpu.percent", "dimensions": {"host": "h"}, "timestamp": now_ms + number, "value": number}
            for number in range(count)
        ]
        request = urllib.request.Request(
            f"{self.api}/v2.0/metrics", json.dumps(metrics).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            self.assertEqual(204, answer.status)


class Entered(fixtures.Fixture):
    """A context that is entered for the test. ``value``: the value of the context."""

    def __init__(self, context):
        self._context = context

    def _setUp(self):
        self.value = self._context.__enter__()
        self.addCleanup(self._context.__exit__, None, None, None)
