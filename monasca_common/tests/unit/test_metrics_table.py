# SPDX-License-Identifier: Apache-2.0
"""The documentation has every metric that a service serves, with its type and its labels, and no other."""

import re
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import monasca_common
from monasca_common.api.access import Served
from monasca_common.api.log_fields import MessageCounts
from monasca_common.api.own_metrics import ApiMetrics
from monasca_common.audit.counter_service import CounterStatus
from monasca_common.audit.service import AuditMetrics, TierTotal
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.notification.metrics import _BY_TYPE, _OTHERS, NotificationMetrics, StoredNotifications
from monasca_common.operations.lag.history import following
from monasca_common.operations.lag.metrics import LagMetrics
from monasca_common.operations.lag.verdict import Commit, LagWindow, PartitionState
from monasca_common.operations.mirror.status import MirrorStatus
from monasca_common.persister.service import OUTCOMES, PREFIX
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.evaluate.gauges import EvaluationMetrics, lost_transitions
from monasca_common.pipeline.evaluate.watermark import EvaluatorState
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.jobs.job import JobProgress
from monasca_common.pipeline.jobs.metrics import JobMetrics
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.runtime.health import ServiceHealth
from monasca_common.runtime.member_health import MemberState, MemberStatus
from monasca_common.runtime.metrics import snapshot
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.status_server import declare_health
from monasca_common.runtime.worker_metrics import WorkerMetrics, WorkersMetrics
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.base import Written

PAGE = Path(__file__).parents[3] / "doc" / "source" / "admin" / "watching.rst"
_ROW = re.compile(r"   \* - ``(monasca_\w+)``\n     - (\w+)\n     -(.*)\n     - \S")
_INTERNAL = {"le"}
PACKAGE = Path(monasca_common.__file__).parent
_PREFIX = re.compile(r'(?m)^_?PREFIX = "monasca_(\w+)"$')
_SERVICE = re.compile(r'(?:(?:(?:Service|Loop)Health|members_health)\(\s*f?|    service = )"([a-z_]+)')


def served(text):
    """{name: (type, labels)}"""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - _INTERNAL
        if not name.endswith("_created"):
            found[name] = (family.type, frozenset(labels))
    return found


def told_metrics():
    """What the page has, as `served`."""
    rows = _ROW.findall(PAGE.read_text())
    return {name: (kind, frozenset(re.findall(r"``(\w+)``", labels))) for name, kind, labels in rows}


class MetricsTableTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.told = told_metrics()
        self.assertEqual(len(_ROW.findall(PAGE.read_text())), len(self.told), "a metric has two rows")

    def assert_told(self, prefix, text):
        self.assertEqual({name: facts for name, facts in self.told.items() if name.startswith(prefix)}, served(text))
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                for value in sample.labels.values():
                    self.assertNotRegex(value, r"\s", f"a value of a label of {sample.name}")

    def test_api(self):
        kafka = self.useFixture(MemoryKafka())
        producers = ProducerPool(lambda _: kafka.producer())
        producers.of("metrics")
        own = ApiMetrics(producers)
        refused = Served(
            0.0, "r", "", "", "t", "POST", "/v2.0/metrics", 503, 0, 0.1, MessageCounts(1, 1, 1, 1), "kafka"
        )
        own.count([refused], 1)
        own.validated("valid", 0.1)
        self.assert_told("monasca_api_", own.text().decode())

    def test_persister(self):
        members = [
            MemberStatus(f"metrics-{number}", state=state, lag={"metrics/0": 1})
            for number, state in enumerate(MemberState)
        ]
        worker = WorkerMetrics(PREFIX, ["metrics-0"], OUTCOMES)
        worker.wrote("metrics-0", Written(stored=1), 0.1)
        board = StatusBoard([ProcessStatus(members, snapshot(worker.registry))])
        self.assert_told("monasca_persister_", generate_latest(WorkersMetrics(PREFIX, board).registry).decode())

    def test_job_of_the_pipeline(self):
        job = JobMetrics("evaluate")
        job.registry.register(self.evaluation())
        job.registry.register(lost_transitions())
        job.tell(JobProgress(1, 1, 1.0, {"records": 1}, {"merge": 1.0}, (PartitionLag("metrics", 0, 1.0),)))
        self.assert_told("monasca_pipeline_", generate_latest(job.registry).decode())

    def evaluation(self):
        url = f"sqlite:///{self.useFixture(fixtures.TempDir()).path}/alarms.sqlite"
        open_storage(StorageSettings("sqlite", url)).upgrade()
        with OffsetStore(url).writing() as connection:
            watermark.save(connection, "job", EvaluatorState(1, 0, watermarks_ms={0: 1}))
        return EvaluationMetrics(url, "job").registry

    def test_notification(self):
        made = NotificationMetrics()
        for what in (*_BY_TYPE, *_OTHERS):
            made.count(what, "WEBHOOK")
        made.took("WEBHOOK", 0.1)
        StoredNotifications(mock.Mock(rows=lambda _: [("scheduled", 1)]), made)
        self.assert_told("monasca_notification_", generate_latest(made.registry).decode())

    def test_mirror(self):
        status = MirrorStatus(SystemClock())
        status.committed("metrics", 1, 1, 1)
        status.skipped("metrics", 1)
        status.lag = lambda: {"metrics": 1}
        self.assert_told("monasca_mirror_", generate_latest(status.registry).decode())

    def test_lag(self):
        made = LagMetrics(1)
        state = PartitionState(0, 9, (Commit(1, 5, 9),), 1, 1000)
        states = {TopicPartition("metrics", number): state for number in range(2)}
        made.completed(following({"g": states}, 2, LagWindow()), 0.1)
        made.failed()
        self.assert_told("monasca_lag_", generate_latest(made.registry).decode())

    def test_audit(self):
        made = AuditMetrics()
        made.reconciled([TierTotal("metrics", "broker", "", 2, 1, 0)], 1)
        made.failed()
        counted = CounterStatus(SystemClock())
        text = generate_latest(made.registry) + generate_latest(counted.registry)
        self.assert_told("monasca_audit_", text.decode())

    def test_every_service(self):
        registry = CollectorRegistry()
        health = ServiceHealth("s", *[lambda: (True, {})] * 3)
        declare_health(health, registry)
        self.assert_told("monasca_service_", generate_latest(registry).decode())

    def test_each_service_is_named_beside_whether_it_is_ready(self):
        code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if "tests" not in path.parts)
        row = PAGE.read_text().partition("``monasca_service_ready``")[2].partition("\n   * - ")[0]
        self.assertEqual(set(_SERVICE.findall(code)), set(re.findall(r"``([a-z_]+)``", row)) - {"service"})

    def test_no_other_is_told_and_what_any_module_serves_is_looked_at_here(self):
        own = {name.removeprefix("test_") for name in dir(self) if name.startswith("test_")}
        code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if "tests" not in path.parts)
        prefixes = set(_PREFIX.findall(code))
        self.assertEqual(set(), prefixes - own - {"pipeline", "service"})
        self.assertNotRegex(code, rf'"monasca_({"|".join(prefixes)})_', "the prefix of a name is written once")
        self.assertRegex(" ".join(self.told), rf"^(monasca_({'|'.join(sorted(prefixes))})_\w+ ?)+$")
