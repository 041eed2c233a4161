# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the job at each of its fail points: the next process has the same results as without the kill.

On SQLite, where the driver both stages and merges, only the points at which this matters are tested; there, the audit
has the messages that the job handled and published, whenever it was killed. `test_pipeline_stream` has the mutants that
must fail: no fence, no key, and an outbox that is cleared too early.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

from msgspec import structs
from testtools.matchers import StartsWith

from monasca_common.audit import reports
from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import open_consumer, open_producer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.operations.audit.log_counter import LogCounter
from monasca_common.tests.command import run_main
from monasca_common.tests.functional.pipeline.pipeline_case import SharedSpark
from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, PipelineProcessCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.audit.audit_case import reconciliations


class CrashTest(PipelineProcessCase):
    """Kill several processes one after another, each after new records were published; the last process completes."""

    def die_at(self, *points):
        for point in points:
            self.send_some()
            self.assertEqual(-signal.SIGKILL, self.run_once(fail_points=f"{point}=kill", is_attached=True), point)
        self.send_some()

    # Rule 28
    def test_after_kills_before_the_commit_everything_is_counted_and_published_once(self):
        self.configure(one_task_offsets=0)  # the executors compute; in the next test the driver does at first
        self.die_at("pipeline.before_staging", "pipeline.after_staging", "pipeline.inside_transaction")
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

    # Rule 28
    def test_after_kills_after_the_commit_everything_is_counted_and_published_once(self):
        self.die_at("pipeline.after_commit", "pipeline.before_publishing", "pipeline.before_clearing")
        # A worker is killed after it has staged rows, and they count once; SIGTERM ends the job in order.
        self.configure(one_task_offsets=0)
        deaths = self.useFixture(SharedSpark()).deaths
        (deaths / "worker").touch()
        process = self.start(is_attached=True)
        self.wait_until(self.is_through, seconds=SECONDS)
        process.terminate()
        self.assertEqual(0, process.wait(SECONDS))
        self.assertEqual([], list(deaths.iterdir()))
        self.assert_clean()
        reported = self.status()
        self.assertEqual((0, 0), (reported["behind"], reported["due"]))

    @periodic("test_loop verifies that a job ends if Spark has died")
    def test_after_a_kill_of_spark_the_next_job_counts_and_publishes_everything_once(self):
        self.configure(one_task_offsets=0)
        self.send_some()
        (self.deaths / "executor").touch()
        self.assertEqual(1, self.run_once())
        reported = self.log.read_text().splitlines()[-1]
        self.assertThat(reported, StartsWith("monasca-common pipeline run: Spark has ended during the job; start"))
        self.send_some()
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

    def status(self):
        command = [sys.executable, "-m", "monasca_common.cli.main", "pipeline", "status", "-f", "json"]
        reported = subprocess.run(
            [*command, "--config-file", str(self.configuration)], capture_output=True, check=True, timeout=SECONDS
        )
        return next(each for each in json.loads(reported.stdout) if each["job"] == "aggregate")


POINTS = (
    "pipeline.before_clearing",
    "pipeline.before_audit",
    "pipeline.after_staging",
    "pipeline.inside_transaction",
)
_AUDIT = """\
[audit]
enabled = true
topic = {topic}
folder = {folder}/audit
grace_seconds = 60
"""


@periodic("CrashTest kills the same job on PostgreSQL, and the archive's CrashTest uses SQLite")
class SqliteCrashTest(PipelineProcessCase):
    database = "sqlite"

    def setUp(self):
        super().setUp()
        self.audit = AuditSettings(topic=self.fixture.topic(1))
        with self.configuration.open("a") as file:
            file.write(_AUDIT.format(topic=self.audit.topic, folder=self.folder))

    def test_after_a_kill_at_each_point_everything_is_counted_published_and_reported_once(self):
        for point in POINTS:
            self.send_some(20)
            self.assertEqual(-signal.SIGKILL, self.run_once(fail_points=f"{point}=kill", is_attached=True), point)
        self.send_some(20)
        self.assertEqual(0, self.run_once(is_attached=True))
        self.assert_clean()

        self.count_log()
        row = self.shown("spark")
        figures = tuple(row[name] for name in ("expected", "messages", "lost", "late"))
        handled = sum(self.next_offsets().values())
        in_log = sum(self.ends().values())  # the log ends with aggregates that no job has read yet
        self.assertEqual(((in_log, handled, 0, in_log - handled), self.group), (figures, row["application"]))
        self.assertGreater(self.lost_without_positions(), 0)
        published = self.shown("producer")
        self.assertEqual(self.group, published["application"])
        self.assertGreater(published["messages"], 0)

    def ends(self):
        return self.cluster.admin.end_offsets([TopicPartition(self.topic, each) for each in range(self.partitions)])

    def count_log(self):
        """Count the log like `audit count`."""
        consuming = ConsumerSettings(self.connection, (self.topic,), "counter", start="earliest")
        with (
            open_producer(ProducerSettings(self.connection)) as producer,
            open_consumer(consuming, partitions=self.ends()) as consumer,
        ):
            counter = LogCounter(self.audit, consumer, producer, "broker")
            self.wait_until(lambda: not counter.poll() and self.is_read(consumer), "the log is counted")
            counter.report()

    def is_read(self, consumer):
        return all(consumer.position(partition) == end for partition, end in self.ends().items())

    def shown(self, tier):
        """Return the row of `audit show` for the job at this tier."""
        status, out, err = run_main("audit", "show", "--config-file", str(self.configuration), "-f", "json")
        self.assertEqual(0, status, err)
        rows = [row for row in json.loads(out) if row["tier"] == tier]
        totals = {name: sum(row[name] for row in rows) for name in ("expected", "messages", "lost", "late")}
        return rows[0] | totals

    def lost_without_positions(self):
        """Return the lost messages that the audit would report if the job did not report its start."""
        found = [reports.decode(message.value()) for message in self.read(self.audit.topic, 1)]
        mutants = [
            structs.replace(each, handled=tuple(one for one in each.handled if one.position is None)) for each in found
        ]
        now_ms = round(time.time() * 1000)
        settings = replace(self.audit, grace_seconds=0)
        return sum(each.lost for each in reconciliations(mutants, now_ms, settings) if each.tier == "spark")
