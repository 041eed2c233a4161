# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of ``pipeline run evaluate`` at its own fail points: the next process publishes the transitions of the plain
reference, each once.

`test_pipeline_crash` tests the fail points that all jobs share. The points that differ with SQLite's transactions are
also tested with SQLite. `test_evaluate_mutants` has the mutants that must fail.
"""

import os
import signal
import sys

from monasca_common.alarms.expression import parse
from monasca_common.kafka.failpoints import ENVIRONMENT_VARIABLE
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline import attached_driver, warm_daemon
from monasca_common.tests.functional.pipeline.pipeline_case import QUICK_JAVA, SharedSpark
from monasca_common.tests.functional.pipeline.test_evaluate import EvaluateCase
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.alarms import reference
from monasca_common.tests.unit.alarms.reference import Measurement
from monasca_common.tests.unit.alarms.test_evaluation import in_order_of_history

SECONDS = 240
_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
linger_ms = 0
[storage]
driver = {driver}
[database]
connection = {url}
[spark]
master = local[2]
shuffle_partitions = 2
options = spark.driver.extraJavaOptions={java}
options = spark.python.daemon.module={daemon}
[pipeline_evaluate]
topic = {topic}
alarm_transitions_topic = {transitions}
trigger_seconds = 0.2
delay_seconds = 0
duplicates_lookback = 100
"""
# Run the command with pages so small that six alarms need several.
_PROGRAM = """\
import sys
from monasca_common.cli import main
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.tests.functional.pipeline import attached_driver
attached_driver.attach()
PassRunner.__init__.__kwdefaults__["page_alarms"] = 2
sys.exit(main.main())
"""
HOSTS = ("a", "b", "c")
# The window of the second definition is two weeks long, so that no due time interferes. A measurement that is lost or
# counted twice changes the time of its transition.
EXPRESSIONS = {"newest": "last(cpu) > 5", "fifth": "count(cpu, 1209600) > 4"}


@periodic("PostgresqlEvaluateProcessTest runs the same test on PostgreSQL")
class EvaluateProcessTest(EvaluateCase):
    POINTS: tuple[str, ...] = (
        "pipeline.after_staging",
        "pipeline.inside_transaction",
        "evaluate.inside_page",
        "evaluate.between_pages",
    )

    def setUp(self):
        super().setUp()
        self.configuration = self.folder / "evaluate.conf"
        self.configuration.write_text(
            _CONFIGURATION.format(
                servers=self.cluster.bootstrap_servers,
                driver=self.database,
                url=self.url,
                java=QUICK_JAVA,
                daemon=warm_daemon.__name__,
                topic=self.topic,
                transitions=self.transitions_topic,
            )
        )
        self.log = self.folder / "evaluate.log"
        self.measured = {host: [] for host in HOSTS}

    def run_once(self, fail_points=""):
        """Run the job once, and return the exit status, which is negative for a signal."""
        command = [sys.executable, "-c", _PROGRAM, "pipeline", "run", "evaluate", "--once"]
        session = self.useFixture(SharedSpark()).session
        command += ["--config-file", str(self.configuration)]
        environment = {**os.environ, ENVIRONMENT_VARIABLE: fail_points, **attached_driver.environment(session)}
        return start_process(self, command, self.log, env=environment).wait(SECONDS)

    def measure_each(self, number):
        """Send measurements that change the state of two of three alarms."""
        for position, host in enumerate(HOSTS):
            self.event_ms = self.created_ms - 60_000 + 1000 * number + position
            value = float((number + position) % 3)
            self.measured[host].append(Measurement(self.event_ms, 4 * value, 0))
            self.measure(4 * value, host=host)

    # Rule 45
    def test_after_a_kill_the_next_process_publishes_each_transition_once(self):
        for name, text in EXPRESSIONS.items():
            self.define(text, "hostname", name=name)
        for number, point in enumerate(self.POINTS):
            self.measure_each(number)
            self.assertEqual(-signal.SIGKILL, self.run_once(f"{point}=kill"), point)
        self.measure_each(len(self.POINTS))
        self.assertEqual(0, self.run_once())
        found, outbox = self.state_changes(), self.scalars("SELECT count(*) FROM alarm_outbox")
        with each_once():
            self.assertEqual(self.expected(), found)
            self.assertEqual([0], outbox)

    def expected(self):
        """Return the changes of the reference. Each measurement is older than its alarm, and of the measurements in
        the first committed batch, `last` counts only the newest."""
        before_commit = sum(point.startswith("pipeline.") for point in self.POINTS)
        found = {}
        for name, text in EXPRESSIONS.items():
            for host, measured in self.measured.items():
                batches = [(measured[before_commit:] if name == "newest" else measured, self.created_ms)]
                found[name, host] = in_order_of_history(reference.changes(parse(text), batches, 0))
        return found


@periodic("PostgresqlCrashTest kills the same job at each fail point")
class PostgresqlEvaluateProcessTest(EvaluateProcessTest):
    database = "postgresql"
    POINTS = (
        "pipeline.inside_transaction",
        "evaluate.inside_page",
        "evaluate.between_pages",
        "evaluate.after_commit",
        "evaluate.before_clearing",
    )
