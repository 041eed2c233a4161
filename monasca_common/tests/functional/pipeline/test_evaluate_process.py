# SPDX-License-Identifier: Apache-2.0
"""``pipeline run evaluate`` as a process of its own, and what its successor makes of it when it was killed."""

import os
import signal
import subprocess
import sys

from monasca_common.kafka.failpoints import ENVIRONMENT_VARIABLE
from monasca_common.tests.functional.attachments import attach_file
from monasca_common.tests.functional.pipeline import warm_daemon
from monasca_common.tests.functional.pipeline.pipeline_case import QUICK_JAVA
from monasca_common.tests.functional.pipeline.test_evaluate import EvaluateCase

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


class EvaluateProcessTest(EvaluateCase):
    database = "postgresql"
    POINTS = (
        "pipeline.after_staging",
        "pipeline.inside_transaction",
        "evaluate.inside_chunk",
        "evaluate.before_clearing",
    )

    def setUp(self):
        super().setUp()
        self.event_ms = self.created_ms  # it has the real clock
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
        attach_file(self, "log", self.log)

    def run_once(self, fail_points=""):
        """The exit status; negative for a signal."""
        command = [sys.executable, "-m", "monasca_common.cli.main", "pipeline", "run", "evaluate", "--once"]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, "--config-file", str(self.configuration)],
                stdout=log,
                stderr=log,
                env={**os.environ, ENVIRONMENT_VARIABLE: fail_points},
            )
        self.addCleanup(process.kill)
        return process.wait(SECONDS)

    def test_who_follows_one_that_was_killed_tells_each_transition_once(self):
        self.define("last(cpu) > 5", "hostname")
        for number, point in enumerate(self.POINTS):
            self.measure(9.0, host=f"h{number}")
            self.assertEqual(-signal.SIGKILL, self.run_once(f"{point}=kill"), point)
        self.assertEqual(0, self.run_once())
        found = set(self.transitions())
        hosts = [f"h{number}" for number in range(len(self.POINTS))]
        self.assertEqual([("UNDETERMINED", "ALARM", host) for host in hosts], sorted(each[1:] for each in found))
        self.assertEqual(len(hosts), len({each[0] for each in found}))
