# SPDX-License-Identifier: Apache-2.0
"""The API as a process under gunicorn, with a real Kafka behind the proxy."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from monasca_common.devbroker import ports
from monasca_common.tests import web
from monasca_common.tests.functional.kafka.producer_case import ProducerCase
from monasca_common.tests.functional.processes import RunningProcess
from monasca_common.tests.waiting import wait_until_ready

METRICS = "/v2.0/metrics"
NOW_MS = int(time.time() * 1000)  # the start of this test process


class ApiProcess(RunningProcess):
    """``monasca-common api`` with its own configuration file. ``command``: another server. ``port``: by default a free
    one."""

    def __init__(self, folder, text, *, command=None, env=None, port=None):
        self.port = port or ports.free_ports(1)[0]
        self.log = Path(folder) / f"api-{self.port}.log"
        self.configuration = Path(folder) / f"api-{self.port}.conf"
        self.configuration.write_text(text.replace("{port}", str(self.port)))
        command = command or [sys.executable, "-m", "monasca_common.cli.main", "api"]
        command = [part.replace("{port}", str(self.port)) for part in command]
        if env is None:
            command += ["--config-file", str(self.configuration)]
        else:
            env = {**os.environ, **{name: value.format(conf=self.configuration) for name, value in env.items()}}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)

    def wait_until_ready(self, status=200):
        """Wait until a request for its version without a token has this status."""
        wait_until_ready(lambda: self.request("GET", "/v2.0")[0] == status, self.process.poll, self.log)
        return self

    def request(self, method, path, body=None, headers=None):
        """Return the result of `fetch` with the parsed body, if any."""
        status, headers, text = self.fetch(method, path, body, headers)
        return status, headers, json.loads(text) if text else None

    def fetch(self, method, path, body=None, headers=None):
        """Return status, headers (names in lower case) and body."""
        return web.request(self.port, method, path, body, headers)

    def post(self, body, headers=None, path=METRICS):
        return self.request("POST", path, body, headers)

    def workers(self):
        return psutil.Process(self.process.pid).children()


class ApiProcessCase(ProducerCase):
    """``self.api(...)`` starts an API; its metrics go to the topic ``self.topic``, rejects to ``self.rejects``."""

    partitions = 2

    def setUp(self):
        super().setUp()
        self.topic, self.rejects = self.fixture.topic(self.partitions), self.fixture.topic()

    def configuration(self, *, kafka=(), api=(), more=""):
        lines = [
            "[kafka]",
            f"bootstrap_servers = {self.cluster.bootstrap_servers}",
            "linger_ms = 5",
            *kafka,
            "[api]",
            "port = {port}",
            f"metrics_topic = {self.topic}",
            f"rejected_metrics_topic = {self.rejects}",
            *([] if any(line.startswith("auth_strategy") for line in api) else ["auth_strategy = noauth"]),
            *api,
            more,
        ]
        return "\n".join(lines) + "\n"

    def start_api(self, text=None, *, command=None, env=None, **changes):
        text = text or self.configuration(**changes)
        api = ApiProcess(tempfile.gettempdir(), text, command=command, env=env)
        self.addCleanup(api.kill)
        return api

    def api(self, **changes):
        return self.start_api(**changes).wait_until_ready()


def metric(name="cpu.percent", **changes):
    return {"name": name, "dimensions": {"host": "a"}, "timestamp": NOW_MS, "value": 1.5, **changes}
