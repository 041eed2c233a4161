# SPDX-License-Identifier: Apache-2.0
"""Alert rules and the dashboard query only existing metrics and labels, and are documented."""

import configparser
import enum
import itertools
import json
import re
import typing
from pathlib import Path

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.cog.runtime import panelcfg_config
from grafana_foundation_sdk.models.dashboard import Dashboard
from oslotest import base
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from monasca_common.api.own_metrics import ApiMetrics
from monasca_common.api.tokens import ValidationOutcome
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.notification.metrics import NotificationMetrics
from monasca_common.operations.audit.service import AuditMetrics
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.persister.service import OUTCOMES, PREFIX
from monasca_common.pipeline.evaluate.gauges import lost_transitions
from monasca_common.runtime.member_health import MemberStatus
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.worker_metrics import WorkersMetrics
from monasca_common.storage.write_metrics import WriteMetrics
from monasca_common.tests.unit.test_metrics_table import told_metrics

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
GUIDE = ROOT / "doc" / "source" / "admin" / "symptoms.rst"
_METRIC = re.compile(r"\b(monasca_\w+)(?:{([^}]*)})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\bby \(([^)]*)\)")
_COUNTED = re.compile(r"(?:rate|increase)\((monasca_\w+)(?:{([^}]*)})?\[")
_MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')
# Requests are frequent: their rate does not depend on the first request of a kind.
_NEEDS_NO_ZERO = {"monasca_api_requests_total", "monasca_api_request_seconds_bucket"}
# The labels that Prometheus adds to each series, and the label of buckets.
_ADDED = {"instance", "le"}


def alerts():
    """{name: rule}"""
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def dashboard():
    return json.loads((DEPLOY / "grafana" / "monasca.json").read_text())


def queries():
    """Return the expressions of the dashboard."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def counted():
    """Yield the name and the named labels of each counter whose increase an alert evaluates."""
    for rule in alerts().values():
        for name, chosen in _COUNTED.findall(rule["expr"]):
            if name in _NEEDS_NO_ZERO:
                continue
            matchers = _MATCHER.findall(chosen)
            labels = [label for label, _, _ in matchers]
            for values in itertools.product(*(value.split("|") for _, _, value in matchers)):
                yield name, dict(zip(labels, values, strict=True))


def absent(text):
    """Return the counters of alerts that services do not serve from 0. Prometheus misses the first increase of such
    a counter."""
    served = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return [
        (name, labels)
        for name, labels in counted()
        if not any(name == each.name and labels.items() <= each.labels.items() for each in served)
    ]


def sample(name):
    """Return the metric that has this sample."""
    return re.sub(r"_(bucket|count|sum)$", "", name)


def lost(before, after, where=""):
    """Return the places of values of ``before`` that are missing or different in ``after``."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [each for key in before for each in lost(before[key], after.get(key), f"{where}/{key}")]
    if isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(itertools.zip_longest(before, after))
        return [each for number, pair in pairs for each in lost(*pair, f"{where}/{number}")]
    return [] if before == after else [where]


def mistyped(made, where=""):
    """Return the fields of a Grafana object and its parts whose values do not have the declared type."""
    found = []
    for name, declared in typing.get_type_hints(type(made)).items():
        value, at = getattr(made, name), f"{where}/{name}"
        if not fits(value, declared):
            found.append(at)
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            if hasattr(each, "to_json"):
                found += mistyped(each, f"{at}/{number}" if isinstance(value, list) else at)
    return found


def fits(value, declared):
    """Return whether a value has a declared type. An integer is a number; a bool is not."""
    kind, arguments = typing.get_origin(declared), typing.get_args(declared)
    if kind is typing.Union:
        return any(fits(value, each) for each in arguments)
    if kind is typing.Literal:
        return value in arguments
    if kind is list:
        return isinstance(value, list) and all(fits(each, arguments[0]) for each in value)
    if kind is dict:
        return isinstance(value, dict) and all(fits(each, arguments[1]) for each in value.values())
    if issubclass(declared, enum.Enum):
        return value in [each.value for each in declared]
    if isinstance(value, bool):
        return declared in (bool, object)
    return isinstance(value, (int, float) if declared is float else declared)


class QueriesTest(base.BaseTestCase):
    # Rule 67
    def test_each_queried_metric_and_label_exists(self):
        reported = told_metrics()
        for query in [*queries(), *(rule["expr"] for rule in alerts().values())]:
            labels = set()
            for name, chosen in _METRIC.findall(query):
                self.assertIn(sample(name), reported, query)
                labels |= reported[sample(name)][1]
                self.assertLessEqual(set(_LABEL.findall(chosen)), reported[sample(name)][1], query)
            grouped = {label.strip() for by in _BY.findall(query) for label in by.split(",")}
            if labels:
                self.assertLessEqual(grouped, labels | _ADDED, query)

    def test_the_texts_of_alerts_use_only_labels_of_the_result(self):
        reported = told_metrics()
        for name, rule in alerts().items():
            left = {label.strip() for by in _BY.findall(rule["expr"]) for label in by.split(",")}
            for metric, _ in [] if left else _METRIC.findall(rule["expr"]):
                left |= reported[sample(metric)][1] | _ADDED
            left |= {"job", "instance"} if "up{" in rule["expr"] else set()
            named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            self.assertLessEqual(named, left, name)


class StartTest(base.BaseTestCase):
    def services(self):
        """Return the metrics that each service with alerts on counters serves before it has counted anything."""
        kafka = self.useFixture(MemoryKafka())
        api = ApiMetrics(ProducerPool(lambda _: kafka.producer()))
        api.will_validate(ValidationOutcome)
        mirror = MirrorStatus(SystemClock())
        mirror.begins(["metrics"])
        worker = WriteMetrics(PREFIX, ["metrics-0"], OUTCOMES)
        board = StatusBoard([ProcessStatus([MemberStatus("metrics-0")], generate_latest(worker.registry).decode())])
        pipeline = CollectorRegistry()
        pipeline.register(lost_transitions())
        others = (
            mirror.registry,
            WorkersMetrics(PREFIX, board).registry,
            pipeline,
            NotificationMetrics(["EMAIL"]).registry,
            AuditMetrics().registry,
        )
        return [api.text(), *map(generate_latest, others)]

    # Rule 68
    def test_counters_of_alerts_are_served_from_0(self):
        self.assertEqual([], absent(b"".join(self.services()).decode()))

    def test_a_missing_counter_is_detected(self):
        served = b"".join(self.services()[:-1]).decode()
        self.assertEqual([("monasca_audit_balances_total", {"outcome": "complete"})], absent(served))


class GuideTest(base.BaseTestCase):
    def test_each_alert_is_in_the_guide_and_has_a_severity_and_a_condition(self):
        self.assertEqual(alerts().keys(), set(re.findall(r"``(Monasca\w+)``", GUIDE.read_text())))
        for name, rule in alerts().items():
            self.assertIn(rule["labels"]["severity"], ("page", "ticket"), name)
            self.assertRegex(rule["annotations"]["description"], r"^[A-Z].+[a-z0-9]$", name)

    def test_prometheus_scrapes_the_ports_of_the_units(self):
        conf = configparser.ConfigParser(strict=False)
        conf.read(DEPLOY / "systemd" / "monasca.conf")
        ports = {value for section in conf.values() for key, value in section.items() if key in ("port", "status_port")}
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        asked = {
            target.rpartition(":")[2]
            for each in config["scrape_configs"]
            if each["job_name"] not in ("monasca-audit", "monasca-dashboard", "monasca-mirror")  # without units
            for target in each["static_configs"][0]["targets"]
        }
        self.assertLessEqual(asked, ports)


class DashboardTest(base.BaseTestCase):
    def test_grafana_reads_each_field_of_the_dashboard(self):
        register_default_plugins()
        read = Dashboard.from_json(dashboard())
        self.assertEqual([], lost(dashboard(), json.loads(JSONEncoder().encode(read))))

    def test_values_and_panels_have_the_types_that_grafana_declares(self):
        register_default_plugins()
        self.assertEqual([], mistyped(Dashboard.from_json(dashboard())))
        unknown = {each["type"] for each in dashboard()["panels"] if panelcfg_config(each["type"]) is None}
        self.assertEqual({"row"}, unknown)  # a row is not a plugin

    def test_values_of_wrong_types_are_detected(self):
        register_default_plugins()
        for change, where in (
            (lambda made: made.update(refresh=17), "/refresh"),
            (lambda made: made["panels"][1].update(id="no number"), "/panels/1/id_val"),
            (lambda made: made["panels"][1]["gridPos"].update(w="wide"), "/panels/1/grid_pos/w"),
            (
                lambda made: made["panels"][1]["fieldConfig"]["defaults"].update(unit=5),
                "/panels/1/field_config/defaults/unit",
            ),
            (lambda made: made["panels"][1]["options"].update(colorMode=5), "/panels/1/options/color_mode"),
            (lambda made: made["panels"][1]["targets"][0].update(expr=["x"]), "/panels/1/targets/0/expr"),
        ):
            made = dashboard()
            change(made)
            self.assertEqual([where], mistyped(Dashboard.from_json(made)))

    def test_an_unknown_field_is_detected(self):
        register_default_plugins()
        made = dashboard()
        made["panels"][1]["titel"] = "a slip"
        read = Dashboard.from_json(made)
        self.assertEqual(["/panels/1/titel"], lost(made, json.loads(JSONEncoder().encode(read))))

    def test_panels_do_not_overlap_and_have_descriptions(self):
        panels = dashboard()["panels"]
        self.assertEqual(len(panels), len({panel["id"] for panel in panels}))
        taken = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
            self.assertEqual(set(), taken & cells, panel["title"])
            taken |= cells
            self.assertTrue(panel["type"] == "row" or panel["description"], panel["title"])
