# SPDX-License-Identifier: Apache-2.0
"""The alert rules by promtool, and every query of rules and dashboard on a real Prometheus that asks a real persister.

What other services serve stands on a page beside it: the documented table, which is compared with the services.
"""

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import confluent_kafka
import fixtures
import yaml
from oslotest import base

from monasca_common.devbroker.ports import free_ports
from monasca_common.kafka.transport.mock_broker import MockBroker
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.unit.persister import envelopes
from monasca_common.tests.unit.test_alert_rules import DEPLOY, alerts, queries
from monasca_common.tests.unit.test_metrics_table import told_metrics

RULES = DEPLOY / "prometheus"
_MISSING = "Prometheus is not installed: no `promtool` on the PATH (Debian's package `prometheus` has it)"
_SECONDS = 30
_COUNT = 20
_PERSISTER = """\
[kafka]
bootstrap_servers = {servers}
topic_check_seconds = 0
[database]
connection = {url}
[persister]
status_port = {port}
[kafka_metrics]
max_wait_time_seconds = 0.01
[kafka_alarm_history]
enabled = false
"""


class PrometheusNeeded:
    """Mixed into a test case."""

    def setUp(self):
        super().setUp()
        if shutil.which("promtool") is None:
            print(_MISSING, file=sys.stderr)  # noqa: T201 - a skip without a word hides what was not tested
            self.skipTest(_MISSING)
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)


class TestAlertRules(PrometheusNeeded, base.BaseTestCase):
    def promtool(self, *arguments):
        return subprocess.run(
            ["promtool", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    def copy_rules(self):
        for name in ("alerts.yml", "alerts_test.yml", "prometheus.yml"):
            (self.folder / name).write_text((RULES / name).read_text())

    def test_rules_and_configuration_are_valid_and_each_alert_fires_for_what_is_bad_alone(self):
        self.copy_rules()
        for arguments in (
            ("check", "rules", "--lint-fatal", "alerts.yml"),
            ("check", "config", "prometheus.yml"),
            ("test", "rules", "alerts_test.yml"),
        ):
            done = self.promtool(*arguments)
            self.assertEqual(0, done.returncode, f"{arguments}: {done.stdout}{done.stderr}")

    def test_each_alert_has_a_test(self):
        tested = [each["name"] for each in yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]]
        self.assertEqual(sorted(alerts()), sorted(tested))

    def test_alerts_that_never_fire_and_alerts_that_always_do_are_caught(self):
        for expression in ("vector(1) > 2", "vector(1)"):
            self.copy_rules()
            made = yaml.safe_load((self.folder / "alerts.yml").read_text())
            for rule in (rule for group in made["groups"] for rule in group["rules"]):
                rule["expr"] = expression
            (self.folder / "alerts.yml").write_text(yaml.safe_dump(made))
            done = self.promtool("test", "rules", "alerts_test.yml")
            self.assertEqual(1, done.returncode)
            self.assertEqual(set(alerts()), alerts().keys() & set(re.findall(r"\w+", done.stdout + done.stderr)))


class TestQueries(Waiting, PrometheusNeeded, base.BaseTestCase):
    def test_every_query_is_answered_and_what_a_real_persister_serves_is_there(self):
        persister = self.start_persister(messages=_COUNT)
        told = {name: facts for name, facts in told_metrics().items() if "_persister_" not in name}
        self.prometheus = self.start_prometheus({"monasca-persister": persister, "monasca-api": self.page(_page(told))})
        self.wait_until(lambda: self.values("sum(monasca_persister_rows_total{outcome='stored'})") == [str(_COUNT)])
        self.wait_until(lambda: self.values("monasca_service_ready{service='persister'}") == ["1"])
        for query in queries():
            asked = query.replace("$__rate_interval", f"{_SECONDS}s")
            self.wait_until(lambda asked=asked: self.values(asked), asked)
        for name, rule in alerts().items():
            self.assertEqual("success", self.ask("query", query=rule["expr"])["status"], name)
        self.wait_until(self.rules_are_evaluated, self.rule_states)

    def start_persister(self, messages):
        """The port at which Prometheus finds its status. It reads from the broker within librdkafka, into SQLite."""
        broker = MockBroker()
        self.addCleanup(lambda: broker)  # it is there as long as somebody has it
        broker.create_topic("metrics")
        broker.create_topic("metrics.dlq")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        now_ms = time.time_ns() // 1_000_000
        for number in range(messages):
            producer.produce("metrics", envelopes.metric(number, time_ms=now_ms, creation_time=now_ms // 1000))
        self.assertEqual(0, producer.flush(PATIENCE_SECONDS))
        (port,) = free_ports(1)
        url = f"sqlite:///{self.folder}/monasca.sqlite"
        open_storage(StorageSettings("sqlite", url)).upgrade()
        config = self.folder / "persister.conf"
        config.write_text(_PERSISTER.format(servers=broker.bootstrap_servers, url=url, port=port))
        self.start(sys.executable, "-m", "monasca_common.cli.main", "persister", "--config-file", str(config))
        return port

    def start(self, *words):
        process = subprocess.Popen(words)
        self.addCleanup(process.wait, PATIENCE_SECONDS)
        self.addCleanup(process.terminate)

    def rules_are_evaluated(self):
        states = self.rule_states()
        return states.keys() == alerts().keys() and set(states.values()) == {"ok"}

    def rule_states(self):
        """{alert: ok, unknown or err}"""
        groups = self.ask("rules")["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def page(self, text):
        """The port at which Prometheus finds the text."""

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                """Nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    def start_prometheus(self, ports):
        """The address of one that asks these ports every second, with the rules."""
        rules = self.folder / "alerts.yml"
        rules.write_text((RULES / "alerts.yml").read_text())
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                for job, port in ports.items()
            ],
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        self.start(
            "prometheus",
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        )
        self.wait_until(lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), "the start of Prometheus")
        return f"http://127.0.0.1:{port}/api/v1"

    def ask(self, what, **parameters):
        url = f"{self.prometheus}/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            self.fail(f"{parameters}: {error.read().decode()}")

    def values(self, query):
        """Of each series."""
        return [each["value"][1] for each in self.ask("query", query=query)["data"]["result"]]


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS):
            return True
    except urllib.error.URLError:
        return False


def _page(told):
    """A sample of each metric, with a value for each label."""
    lines = []
    for name, (kind, labels) in sorted(told.items()):
        chosen = ", ".join(f'{label}="STALL"' for label in sorted(labels))
        lines.append(f"# TYPE {re.sub('_total$', '', name) if kind == 'counter' else name} {kind}")
        if kind != "histogram":
            lines.append(f"{name}{{{chosen}}} 1")
            continue
        bound = ", ".join(filter(None, (chosen, 'le="+Inf"')))
        lines += [f"{name}_bucket{{{bound}}} 1", f"{name}_count{{{chosen}}} 1", f"{name}_sum{{{chosen}}} 1"]
    return ("\n".join(lines) + "\n").encode()
