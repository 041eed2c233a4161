# SPDX-License-Identifier: Apache-2.0
"""The documentation has each metric that a service serves, with type, labels and help, and no other metric.

``python -m monasca_common.tests.unit.test_metrics_table`` writes the table.
"""

import re
import tempfile
from pathlib import Path
from unittest import mock

from oslotest import base
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import monasca_common
from monasca_common.api.access import Served
from monasca_common.api.log_fields import MessageCounts
from monasca_common.api.own_metrics import ApiMetrics
from monasca_common.audit.reconciliation import AuditVerdict, Reconciliation
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import ProducerPool
from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.notification.metrics import _BY_TYPE, _OTHERS, NotificationMetrics, serve_stored
from monasca_common.operations.audit.counter_service import CounterService
from monasca_common.operations.audit.service import AuditMetrics
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
from monasca_common.runtime.status_board import ProcessStatus, StatusBoard
from monasca_common.runtime.status_server import declare_health
from monasca_common.runtime.worker_metrics import WorkersMetrics
from monasca_common.sink import service as sink_service
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.base import Written
from monasca_common.storage.tables.writer import Applied
from monasca_common.storage.write_metrics import WriteMetrics

TABLE = Path(__file__).parents[3] / "doc" / "source" / "admin" / "metrics.inc"
_ROW = re.compile(r"   \* - ``(monasca_\w+)``\n     - (\w+)\n     -(.*)\n     - \S")
_INTERNAL = {"le"}
PACKAGE = Path(monasca_common.__file__).parent
_PREFIX = re.compile(r'(?m)^_?PREFIX = "monasca_(\w+)"$')
_SERVICE = re.compile(r'(?:(?:(?:Service|Loop)Health|members_health)\(\s*f?|\bservice ?= ?)"([a-z_]+)(?![a-z_.])')
_CODE = re.compile(r"/\w+|\b[a-z]+_[a-z_]+\b")


def families(text):
    """Yield the name, type, labels and help of each metric."""
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - _INTERNAL
        if not name.endswith("_created"):
            yield name, family.type, labels, family.documentation


def served(text):
    """Return {name: (type, labels)} of the served metrics."""
    return {name: (kind, frozenset(labels)) for name, kind, labels, _ in families(text)}


def told_metrics():
    """Return the metrics of the table, in the form of `served`."""
    rows = _ROW.findall(TABLE.read_text())
    return {name: (kind, frozenset(re.findall(r"``(\w+)``", labels))) for name, kind, labels in rows}


def api():
    with MemoryKafka() as kafka:
        producers = ProducerPool(lambda _: kafka.producer())
        producers.of("metrics")
        own = ApiMetrics(producers)
        refused = Served(
            0.0, "r", "", "", "t", "POST", "/v2.0/metrics", 503, 0, 0.1, MessageCounts(1, 1, 1, 1), "kafka"
        )
        own.count([refused], 1)
        own.validated("valid", 0.1)
        return own.text()


def audit():
    made = AuditMetrics()
    made.reconciled([Reconciliation("metrics", 0, "broker", "", 2, 1, 1, 0, 0, 0, AuditVerdict.INCOMPLETE)], 1)
    made.failed()
    counter = CounterService(AuditSettings(), *[mock.Mock()] * 3, (), "group", "broker")
    return generate_latest(made.registry) + generate_latest(counter.metrics.registry)


def lag():
    made = LagMetrics()
    state = PartitionState(0, 9, (Commit(1, 5, 9),), 1, 1000)
    states = {TopicPartition("metrics", number): state for number in range(2)}
    made.completed(following({"g": states}, 2, LagWindow()), 0.1)
    made.failed()
    return generate_latest(made.registry)


def mirror():
    status = MirrorStatus(SystemClock())
    status.committed("metrics", 1, 1, 1)
    status.skipped("metrics", 1)
    status.lag = lambda: {"metrics": 1}
    return generate_latest(status.registry)


def notification():
    made = NotificationMetrics()
    for what in (*_BY_TYPE, *_OTHERS):
        made.count(what, "WEBHOOK")
    made.took("WEBHOOK", 0.1)
    members = [MemberStatus("alarm-state-transitions", state=state, lag={"a/0": 1}) for state in MemberState]
    board = StatusBoard([ProcessStatus(members, generate_latest(made.registry).decode())])
    served = WorkersMetrics("monasca_notification", board)
    serve_stored(served, mock.Mock(rows=lambda _: [("scheduled", 1)]))
    return generate_latest(served.registry)


def persister():
    members = [
        MemberStatus(f"metrics-{number}", state=state, lag={"metrics/0": 1}) for number, state in enumerate(MemberState)
    ]
    worker = WriteMetrics(PREFIX, ["metrics-0"], OUTCOMES)
    worker.wrote("metrics-0", Written(stored=1), 0.1)
    board = StatusBoard([ProcessStatus(members, generate_latest(worker.registry).decode())])
    return generate_latest(WorkersMetrics(PREFIX, board).registry)


def sink():
    members = [MemberStatus("sink-0", state=state, lag={"orders/0": 1}) for state in MemberState]
    worker = WriteMetrics(sink_service.PREFIX, ["sink-0"], sink_service.OUTCOMES)
    worker.wrote("sink-0", Applied(stored=1), 0.1)
    board = StatusBoard([ProcessStatus(members, generate_latest(worker.registry).decode())])
    return generate_latest(WorkersMetrics(sink_service.PREFIX, board).registry)


def job_of_the_pipeline():
    job = JobMetrics("evaluate")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/alarms.sqlite"
        open_storage(StorageSettings("sqlite", url)).upgrade()
        with OffsetStore(url).writing() as connection:
            watermark.save(connection, "job", EvaluatorState(1, 0, watermarks_ms={0: 1}))
        job.registry.register(EvaluationMetrics(url, "job").registry)
        job.registry.register(lost_transitions())
        job.tell(JobProgress(1, 1, 1.0, {"records": 1}, {"merge": 1.0}, (PartitionLag("metrics", 0, 1.0),)))
        return generate_latest(job.registry)


def every_service():
    registry = CollectorRegistry()
    health = ServiceHealth("s", dict, list)
    declare_health(health, registry)
    return generate_latest(registry)


SERVED = {
    "api": api,
    "audit": audit,
    "lag": lag,
    "mirror": mirror,
    "notification": notification,
    "persister": persister,
    "sink": sink,
    "pipeline": job_of_the_pipeline,
    "service": every_service,
}


def table():
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 40 12 18 30", ""]
    rows = [("Name", "Type", "Labels", "Meaning")]
    for metrics in SERVED.values():
        for name, kind, labels, text in families(metrics().decode()):
            rows.append((f"``{name}``", kind, ", ".join(f"``{label}``" for label in sorted(labels)), marked(text)))
    for first, *others in rows:
        lines += [f"   * - {first}", *(f"     - {cell}".rstrip() for cell in others)]
    return "\n".join(lines) + "\n"


def marked(text):
    """Mark names of options and paths as code."""
    return _CODE.sub(lambda found: f"``{found[0]}``", text)


class MetricsTableTest(base.BaseTestCase):
    def test_the_table_has_every_metric_that_a_service_serves(self):
        command = "python -m monasca_common.tests.unit.test_metrics_table"
        self.assertEqual(table(), TABLE.read_text(), f"run {command}")

    def test_each_name_starts_with_the_prefix_of_its_service(self):
        for service, metrics in SERVED.items():
            for name in served(metrics().decode()):
                self.assertRegex(name, rf"^monasca_{service}_")

    def test_no_value_of_a_label_contains_a_blank(self):
        for metrics in SERVED.values():
            for family in text_string_to_metric_families(metrics().decode()):
                for sample in family.samples:
                    for value in sample.labels.values():
                        self.assertNotRegex(value, r"\s", f"a value of a label of {sample.name}")

    def test_the_page_lists_each_service_that_has_probes(self):
        code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if "tests" not in path.parts)
        services = (
            (TABLE.parent / "watching.rst").read_text().partition("The label ``service`` is ")[2].partition(".\n")[0]
        )
        self.assertEqual(set(_SERVICE.findall(code)), set(re.findall(r"``([a-z_]+)``", services)))

    def test_each_prefix_in_the_code_has_metrics_here_and_is_written_once(self):
        code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if "tests" not in path.parts)
        prefixes = set(_PREFIX.findall(code))
        self.assertEqual(set(), prefixes - SERVED.keys())
        self.assertNotRegex(code, rf'"monasca_({"|".join(prefixes)})_', "the prefix of a name is written once")


if __name__ == "__main__":
    TABLE.write_text(table())
