# SPDX-License-Identifier: Apache-2.0
"""The alert rules in promtool, and every query of the rules and the dashboard in a Prometheus that scrapes real
services."""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import fixtures
import yaml
from oslotest import base

from monasca_common.cli import main
from monasca_common.devbroker.ports import free_ports
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.evaluate.gauges import EvaluationMetrics, lost_transitions
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobProgress, JobWatcher
from monasca_common.pipeline.jobs.metrics import served
from monasca_common.pipeline.settings import JobStatusSettings
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.tests.functional.changed_command import command_after, set_constants
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.functional.prometheus_server import PrometheusServer
from monasca_common.tests.kafka_cluster import KafkaClusterFixture, SharedKafkaCluster
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import http_server, respond, serve
from monasca_common.tests.unit.test_alert_rules import DEPLOY, absent, alerts, queries
from monasca_common.tests.unit.test_metrics_table import served as served_metrics
from monasca_common.tests.unit.test_metrics_table import told_metrics
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting
from monasca_common.tests.web import fetch, is_ok

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
    "sink": ("sink", "run"),
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
[sink]
mapping_file = {mapping}
status_port = {sink}
"""
_MAPPING = """\
[readings]
topic = "metrics"
[readings.columns]
reading = {type = "double", from = "value.metric.value"}
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
        mapping = Path(self.folder, "mapping.toml")
        mapping.write_text(_MAPPING)
        # SQLite permits only one writing process, and the persister uses the other database.
        Path(self.folder, "sink.conf").write_text(f"[database]\nconnection = sqlite:///{self.folder}/sink.sqlite\n")
        self.configuration = Path(self.folder, "monasca.conf")
        self.configuration.write_text(
            _CONFIGURATION.format(
                source=source.direct_options()["bootstrap.servers"],
                target=target.cluster.direct_options()["bootstrap.servers"],
                mirrored=mirrored,
                url=url,
                folder=self.folder,
                mapping=mapping,
                api_port=self.api.rpartition(":")[2],
                **self.ports,
            )
        )
        del self.ports["dashboard_port"]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(0, main.main(["init", "--execute", *_MADE, "--config-file", str(self.configuration)]))
            for words in (["db", "upgrade"], ["sink", "plan", "--execute"]):
                self.assertEqual(0, main.main([*words, *self.files("sink")]))
        for service, words in COMMANDS.items():
            self.start_service(service, *words)
        self.serve_evaluator(url)

    def start_service(self, service, *words):
        # The API's metrics need an environment variable that the API sets before its imports.
        quick = {"monasca_common.operations.audit.service._INTERVAL_SECONDS": 0.5} if service == "audit" else {}
        command = [*command_after((set_constants, quick)), *words, *self.files(service)]
        start_process(self, command, self.log_of(service))

    def files(self, service):
        own = ("--config-file", f"{self.folder}/sink.conf") if service == "sink" else ()
        return "--config-file", str(self.configuration), *own

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
        return is_ok(f"http://127.0.0.1:{self.ports[service]}/readyz")

    def page(self, service):
        return fetch(f"http://127.0.0.1:{self.ports[service]}/metrics")[1]

    def everything_served(self):
        return "".join(self.page(service) for service in self.ports)

    def post(self, count, now_ms):
        metrics = [
            {"name": "cpu.percent", "dimensions": {"host": "h"}, "timestamp": now_ms + number, "value": number}
            for number in range(count)
        ]
        body = json.dumps(metrics).encode()
        self.assertEqual(204, fetch(f"{self.api}/v2.0/metrics", body, Content_Type="application/json")[0])


class Entered(fixtures.Fixture):
    """A context that is entered for the duration of a test. ``value``: the value of the context."""

    def __init__(self, context):
        self._context = context

    def _setUp(self):
        self.value = self._context.__enter__()
        self.addCleanup(self._context.__exit__, None, None, None)


RULES = DEPLOY / "prometheus"
_MISSING = "Prometheus is not installed: no `promtool` on the PATH (Debian's package `prometheus` has it)"
_SECONDS = 30
_COUNT = 20
_TOKENS = "monasca_api_token_validation_seconds"  # without Keystone, no token is validated


class PrometheusNeeded:
    """A mixin for a test case."""

    def setUp(self):
        super().setUp()
        if shutil.which("promtool") is None:
            print(_MISSING, file=sys.stderr)  # noqa: T201 - show which tests did not run
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

    def test_rules_and_configuration_are_valid_and_each_alert_fires_only_for_its_problem(self):
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

    @periodic("mutants; the normal run tests the rules themselves")
    def test_alerts_that_never_fire_or_always_fire_are_detected(self):
        for expression in ("vector(1) > 2", "vector(1)"):
            self.copy_rules()
            made = yaml.safe_load((self.folder / "alerts.yml").read_text())
            for rule in (rule for group in made["groups"] for rule in group["rules"]):
                rule["expr"] = expression
            (self.folder / "alerts.yml").write_text(yaml.safe_dump(made))
            done = self.promtool("test", "rules", "alerts_test.yml")
            self.assertEqual(1, done.returncode)
            self.assertEqual(set(alerts()), alerts().keys() & set(re.findall(r"\w+", done.stdout + done.stderr)))


@periodic("starts every service; the normal run contains TestAlertRules")
class TestQueries(RealServices, PrometheusNeeded, base.BaseTestCase):
    # Rule 67
    def test_every_query_has_a_result_and_every_service_serves_the_documented_metrics(self):
        self.start_services()
        self.wait_until_ready()
        at_start = {name for name, _ in absent(self.everything_served())}
        self.assertEqual({f"{_TOKENS}_count"}, at_start, "counters of alerts that are not served from 0")
        self.post(_COUNT, time.time_ns() // 1_000_000)
        self.wait_until(lambda: not self.undocumented(), self.undocumented)
        # Some queries select problems, which the services do not have here.
        others = self.serve_page(_page(told_metrics()))
        self.prometheus = self.start_prometheus({**self.ports, "others": others})
        self.wait_until(lambda: self.values("sum(monasca_persister_rows_total{outcome='stored'})") == [str(_COUNT)])
        for service in self.ports:
            self.wait_until(
                lambda service=service: self.values(f"monasca_service_ready{{service='{service}'}}") == ["1"]
            )
        self.assertEqual(["1"] * len(self.ports), self.values("up{job!='monasca-others'}"))
        for query in queries():
            asked = query.replace("$__rate_interval", f"{_SECONDS}s")
            self.wait_until(lambda asked=asked: self.values(asked), asked)
        for name, rule in alerts().items():
            self.assertEqual("success", self.ask("query", query=rule["expr"])["status"], name)
        self.wait_until(self.rules_are_evaluated, self.rule_states)

    def undocumented(self):
        """Return the differences between served and documented metrics: names, types, and the labels of metrics with
        samples."""
        reported, found = told_metrics(), served_metrics(self.everything_served())
        del reported[_TOKENS]
        differ = {
            name
            for name in reported.keys() & found
            if found[name] not in (reported[name], (reported[name][0], frozenset()))
        }
        return differ | (reported.keys() ^ found.keys())

    def rules_are_evaluated(self):
        states = self.rule_states()
        return states.keys() == alerts().keys() and set(states.values()) == {"ok"}

    def rule_states(self):
        """Return the state (ok, unknown or err) of each alert."""
        groups = self.ask("rules")["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def serve_page(self, text):
        """Serve the text to Prometheus, and return the port."""
        server = http_server(lambda handler: respond(handler, 200, text, {"Content-Type": "text/plain; version=0.0.4"}))
        self.addCleanup(serve(server))
        return server.server_port

    def start_prometheus(self, ports):
        """Start Prometheus with the rules, let it scrape these ports every second, and return its address."""
        rules = self.folder / "alerts.yml"
        rules.write_text((RULES / "alerts.yml").read_text())
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": f"monasca-{job}",
                    "honor_labels": True,
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                }
                for job, port in ports.items()
            ],
        }
        return f"{self.useFixture(PrometheusServer(config)).url}/api/v1"

    def ask(self, what, **parameters):
        status, text = fetch(f"{self.prometheus}/{what}?{urllib.parse.urlencode(parameters)}")
        self.assertEqual(200, status, f"{parameters}: {text}")
        return json.loads(text)

    def values(self, query):
        """Return the value of each series."""
        return [each["value"][1] for each in self.ask("query", query=query)["data"]["result"]]


def _page(reported):
    """Return a page with a sample of each metric, with a value for each label."""
    lines = []
    for name, (kind, labels) in sorted(reported.items()):
        chosen = ", ".join(f'{label}="STALL"' for label in sorted(labels))
        lines.append(f"# TYPE {re.sub('_total$', '', name) if kind == 'counter' else name} {kind}")
        if kind != "histogram":
            lines.append(f"{name}{{{chosen}}} 1")
            continue
        bound = ", ".join(filter(None, (chosen, 'le="+Inf"')))
        lines += [f"{name}_bucket{{{bound}}} 1", f"{name}_count{{{chosen}}} 1", f"{name}_sum{{{chosen}}} 1"]
    return ("\n".join(lines) + "\n").encode()
