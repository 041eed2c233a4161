# SPDX-License-Identifier: Apache-2.0
"""Run the commands of the page on the change to Prometheus, exactly as it shows them, while metrics are posted."""

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.api.api_case import ApiProcess
from monasca_common.tests.functional.processes import attach_file, start_process
from monasca_common.tests.functional.prometheus_server import MISSING, samples_of
from monasca_common.tests.kafka_cluster import KafkaClusterFixture
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting

PAGE = Path(__file__).parents[4] / "doc" / "source" / "admin" / "to_prometheus.rst"
_BLOCK = re.compile(r"(?m)^\.\. code-block:: bash\n\n((?:   .*\n|\n)+)")
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
linger_ms = 0
[database]
connection = sqlite:///{folder}/monasca.sqlite
[api]
port = {api_port}
auth_strategy = noauth
noauth_tenant = observed
[kafka_metrics]
topic = metrics
group_id = persister-metrics
max_wait_time_seconds = 0.01
[monitoring]
durability_check = off
[audit]
enabled = true
folder = {folder}/audit
bucket_seconds = 5
grace_seconds = 60
"""
_SECONDS = 600
_DONE = "the page's commands have ended"
# The persister is the leader of its own process group, so killing the shell's group does not end it.
_STOP_ALL = "trap 'kill $(jobs -p); wait' EXIT"


@periodic("a walk-through; test_prometheus_driver has the same writes through failures")
class ToPrometheusTest(Waiting, base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 2

    def setUp(self):
        if MISSING:
            self.skipTest(MISSING)
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        cluster = self.useFixture(KafkaClusterFixture()).cluster
        api_port, self.prometheus_port, persister_port = free_ports(3)
        text = _CONFIGURATION.format(servers=cluster.bootstrap_servers, folder=self.folder, api_port=api_port)
        self.configuration = self.folder / "monasca.conf"
        self.configuration.write_text(text)
        self.ports = {"PROMETHEUS_PORT": str(self.prometheus_port), "PERSISTER_PORT": str(persister_port)}
        self.run_command("init", "--execute", "--service", "api", "--service", "persister")
        self.api = ApiProcess(self.folder, text, port=api_port)
        self.addCleanup(self.api.kill)
        self.api.wait_until_ready()
        self.persister = self.start("persister")
        self.start("audit", "count")
        self.posted, self.over = [], threading.Event()
        self.poster = threading.Thread(target=self.post)
        self.poster.start()
        self.addCleanup(self.poster.join)
        self.addCleanup(self.over.set)

    def command(self, *words):
        return [sys.executable, "-m", "monasca_common.cli.main", *words, "--config-file", str(self.configuration)]

    def run_command(self, *words):
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=_SECONDS)
        self.assertEqual(0, done.returncode, done.stderr)

    def start(self, *words):
        log = self.folder / f"{'-'.join(words)}.log"
        return start_process(self, self.command(*words), log)

    def post(self):
        """Post one metric after another; its value is its number."""
        while not self.over.wait(0.1):
            number, now_ms = len(self.posted), time.time_ns() // 1_000_000
            metric = {"name": "cpu.percent", "dimensions": {"host": "h"}, "timestamp": now_ms, "value": number}
            self.posted.append((now_ms, float(number)))
            assert self.api.post(metric)[0] == 204

    def run_the_page(self):
        """Run all blocks in one shell, which keeps running, and return their output."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = {
            "MONASCA_CONF": str(self.configuration),
            "PROMETHEUS_HOME": str(self.folder / "prometheus"),
            "STOP_PERSISTER": f"kill {self.persister.pid}",
            "PATH": path,
        }
        blocks = [textwrap.dedent(block) for block in _BLOCK.findall(PAGE.read_text())]
        output = self.folder / "shown.log"
        for name in ("prometheus.log", "persister.log"):
            attach_file(self, name, self.folder / "prometheus" / name)
        command = ["bash", "-c", "\n".join(["set -euo pipefail", _STOP_ALL, *blocks, f"echo {_DONE!r}", "read -r"])]
        environment = {**os.environ, **self.ports, **variables}
        process = start_process(self, command, output, stdin=subprocess.PIPE, env=environment)
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.stdin.close)
        self.wait_until(lambda: process.poll() is not None or _DONE in output.read_text(), seconds=_SECONDS)
        self.assertIsNone(process.poll(), output.read_text())
        return output.read_text()

    def rows(self):
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/monasca.sqlite?mode=ro", uri=True)) as connection:
            return set(connection.execute("SELECT time, value FROM measurements"))

    def samples(self):
        found = samples_of(f"http://127.0.0.1:{self.prometheus_port}", '{__name__="U__cpu_2e_percent"}')
        self.assertEqual({"observed"}, {dict(labels)["tenant"] for labels, _, _ in found})
        return {(time_ms, value) for _, time_ms, value in found}

    def test_each_metric_is_in_the_database_or_in_prometheus_and_those_in_between_are_in_both(self):
        shown = self.run_the_page()
        self.assertEqual(0, self.persister.wait(PATIENCE_SECONDS))
        stopped = len(self.posted)
        self.wait_until(lambda: len(self.posted) > stopped + 10)
        self.over.set()
        self.poster.join()
        first = min(self.samples())
        self.wait_until(lambda: len(self.samples()) >= sum(each >= first for each in self.posted), "the last sample")

        rows, samples = self.rows(), self.samples()
        with each_once():
            self.assertEqual(set(self.posted), rows | samples)
            self.assertEqual({each for each in self.posted if each >= first}, samples)
            self.assertEqual({each for each in self.posted if each <= max(rows)}, rows)
        self.assertGreater(len(rows & samples), 10)
        self.assertGreater(len(samples - rows), 10)
        self.assertIn("database persister-prometheus OK", shown)
        # The table also has buckets that continue, so a persister can be behind in it.
        self.assertRegex(shown, r"(?m)^\|.*\| persister-metrics +\| (OK|OPEN) ")
