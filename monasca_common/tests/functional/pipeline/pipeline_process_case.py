# SPDX-License-Identifier: Apache-2.0
"""The job aggregate as a separate process, on PostgreSQL, and how the tests kill it."""

import json
import os
import sys
import tempfile
from pathlib import Path

import fixtures
from oslo_config import cfg

from monasca_common.kafka.failpoints import ENVIRONMENT_VARIABLE
from monasca_common.pipeline.status import job_statuses
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline import attached_driver, pipeline_daemon
from monasca_common.tests.functional.pipeline.pipeline_case import (
    CPU_PRE_ROWS,
    CPU_ROWS,
    QUICK_JAVA,
    CpuCase,
    SharedSpark,
    cpu,
)
from monasca_common.tests.functional.processes import start_process

SECONDS = 240  # time limit of one run, which starts Spark while other tests do the same

_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
linger_ms = 0
[spark]
master = {master}
shuffle_partitions = 2
options = spark.driver.extraJavaOptions={java}
options = spark.executor.extraJavaOptions={java}
options = spark.python.daemon.module={daemon}
options = spark.executorEnv.{deaths}={folder}
{spark}
[pipeline_aggregate]
topic = {topic}
output_topic = {topic}
connection = {url}
pre_transform_specs = {folder}/../pre.jsonl
transform_specs = {folder}/../transform.jsonl
trigger_seconds = 0.2
one_task_offsets = {one_task_offsets}
slack_seconds = 0
retention_days = 36500
tenant = the-tenant
region = the-region
"""


class ReadOnlyFolder(fixtures.Fixture):
    """A working directory in which no file may be created. Root can create files; the removal of the folder then
    fails."""

    def _setUp(self):
        self.path = Path(tempfile.mkdtemp())
        self.path.chmod(0o500)
        self.addCleanup(self.path.rmdir)


class PipelineProcessCase(CpuCase):
    database = "postgresql"
    master = "local[2]"

    def setUp(self):
        super().setUp()
        self.group = "spark-aggregate"
        self.deaths = self.folder / "deaths"
        self.deaths.mkdir()
        for name, rows in (("pre", CPU_PRE_ROWS), ("transform", CPU_ROWS)):
            (self.folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.configuration = self.folder / "pipeline.conf"
        self.log = self.folder / "pipeline.log"
        self.configure()
        self.chunks = self.bad = 0

    def configure(self, spark="", one_task_offsets=10_000):
        self.configuration.write_text(
            _CONFIGURATION.format(
                servers=self.cluster.bootstrap_servers,
                master=self.master,
                java=QUICK_JAVA,
                daemon=pipeline_daemon.__name__,
                deaths=pipeline_daemon.DEATHS,
                folder=self.deaths,
                topic=self.topic,
                url=self.url,
                spark=spark,
                one_task_offsets=one_task_offsets,
            )
        )

    def send_some(self, count=40):
        """Send records of two hosts in the next ten minutes, and one invalid record."""
        minute = 10 * (self.chunks % 5)
        self.chunks += 1
        self.bad += 1
        self.send(*(cpu(minute + number / count, number + self.chunks, "ab"[number % 2]) for number in range(count)))
        self.publish([b"no record %d" % self.bad])

    def start(self, *arguments, fail_points="", is_attached=False):
        """Start the command in a group of processes that ends with the test. ``is_attached``: see `attached_driver`."""
        environment = {**os.environ, ENVIRONMENT_VARIABLE: fail_points, pipeline_daemon.DEATHS: str(self.deaths)}
        module = "monasca_common.cli.main"
        if is_attached:
            module = attached_driver.__name__
            environment |= attached_driver.environment(self.useFixture(SharedSpark()).session)
        command = [sys.executable, "-m", module, "pipeline", "run", "aggregate"]
        command += ["--config-file", str(self.configuration), *arguments]
        return start_process(self, command, self.log, env=environment, cwd=self.useFixture(ReadOnlyFolder()).path)

    def run_once(self, **how):
        """Run the job once, and return the exit status, which is negative for a signal."""
        return self.start("--once", **how).wait(SECONDS)

    def is_through(self):
        """Return whether everything is counted and published.

        A status reads the log before the periods, so messages published in between are unread only in the next status.
        """
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(self.configuration)])
        statuses = (each for _ in range(2) for each in job_statuses(conf) if each.job == "aggregate")
        return all(each.behind == each.due == 0 for each in statuses)

    @each_once()
    def assert_clean(self):
        """Check that output and table equal a plain computation of all records, without repeated or additional rows."""
        self.assert_exact()
        self.assertEqual([], self.double_rows())
        counts = dict.fromkeys((transform.id for transform in self.specs.transforms.values()), len(self.sent))
        with self.offset_store.reading() as connection:
            found = connection.exec_driver_sql(
                "SELECT specification, sum(record_count) FROM aggregate_usage GROUP BY specification"
            )
            self.assertEqual(counts, {name: int(count) for name, count in found})
        letters = {dict(letter.headers())["message-id"]: letter.value() for letter in self.read(self.dlq, 1)}
        self.assertEqual(self.bad, len(letters))
