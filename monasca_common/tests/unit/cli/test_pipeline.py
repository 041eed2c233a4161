# SPDX-License-Identifier: Apache-2.0
"""``monasca-common pipeline``: checks before Spark is started."""

import io
import json
from pathlib import Path
from unittest import mock

import fixtures
from testtools.matchers import Contains, StartsWith

from monasca_common.cli.main import MonascaCommon
from monasca_common.cli.pipeline import status_row
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.errors import SparkUnavailable
from monasca_common.pipeline.jobs.activity import Activity, JobState, LastBatch
from monasca_common.pipeline.jobs.job import Job, JobProgress
from monasca_common.pipeline.replay.job import ReplayJob
from monasca_common.pipeline.status import JobStatus, PartitionStatus
from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row

KAFKA = "[kafka]\nbootstrap_servers = 127.0.0.1:1\n[database]\nconnection = sqlite:////nowhere/x.sqlite\n"


class PipelineCommandTest(CommandCase):
    command = ("pipeline",)
    configuration = KAFKA

    def assert_refused(self, *arguments, says, text=KAFKA):
        status, out, err = self.run_command(*arguments, text=text)
        self.assertEqual((1, ""), (status, out))
        last = err.splitlines()[-1]  # after the log lines
        self.assertThat(last, StartsWith(f"monasca-common pipeline {arguments[0]}: "))
        self.assertThat(last, Contains(says))

    def test_list_shows_each_job_with_a_summary(self):
        status, out, _ = self.run_command("list", "-f", "json", has_file=False)
        self.assertEqual(0, status)
        summaries = {row["job"]: row["summary"] for row in json.loads(out)}
        self.assertLessEqual({"aggregate", "backfill"}, set(summaries))
        self.assertNotIn("", summaries.values())

    def test_topics_are_checked_before_a_job_runs(self):
        job = mock.Mock()
        checked = mock.Mock(side_effect=ConfigurationError("topic metrics: there is one replica"))
        with (
            mock.patch("monasca_common.pipeline.jobs.job.load_job", lambda *_: job),
            mock.patch("monasca_common.cli.pipeline.check_at_start", checked),
        ):
            self.assert_refused("run", "aggregate", says="topic metrics: there is one replica")
        self.assertEqual("pipeline", checked.call_args.args[0])
        job.run.assert_not_called()

    def test_an_unknown_job_is_reported_with_the_known_ones(self):
        self.assert_refused("run", "agregate", says="job=agregate is not known: use one of ")

    def test_an_invalid_time_is_refused(self):
        status, _, err = self.run_command("run", "aggregate", "--from", "yesterday")
        self.assertEqual(2, status)
        self.assertThat(err, Contains("--from: 'yesterday' is not a time"))

    def test_an_unusable_configuration_is_refused(self):
        for arguments in (("list",), ("specifications", "check")):
            status, _, err = self.run_command(*arguments)
            self.assertEqual(2, status)
            self.assertThat(err, Contains("unrecognized arguments: --config-file"))

    def test_aggregate_refuses_a_range_and_names_the_job_that_accepts_one(self):
        self.assert_refused("run", "aggregate", "--from", "2026-01-01T00:00:00Z", says="run the job backfill")

    def test_only_a_replay_takes_execute(self):
        self.assert_refused("run", "aggregate", "--execute", says="--execute: only the job replay accepts this option")

    def test_the_progress_of_a_job_names_its_unit(self):
        class Done(Job):
            unit = "files"

            def __init__(self, conf):
                pass

            def run(self, request, watcher):
                watcher.tell(JobProgress(1, 6, 0.1))
                return JobProgress(7, 0, 0.5)

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.jobs.job.job_class", lambda name: Done))
        _, out, err = self.run_command("run", "replay", "--once")
        self.assertThat(out, StartsWith("replay: 7 files done, 0 left\n"))
        self.assertThat(err, Contains("replay: 1 files done, 6 left"))
        self.assertEqual("files", ReplayJob.unit)

    def test_a_configuration_without_brokers_is_reported(self):
        self.assert_refused("run", "aggregate", text="[database]\nconnection = sqlite://\n", says="bootstrap_servers")

    def test_an_invalid_specification_is_reported(self):
        text = f"{KAFKA}[pipeline_aggregate]\nslack_seconds = soon\n"
        self.assert_refused("run", "aggregate", text=text, says="slack_seconds")

    def test_an_unavailable_database_is_reported(self):
        for arguments in (("run", "aggregate", "--once"), ("status",)):
            self.assert_refused(*arguments, says="unable to open database file")

    def test_the_status_has_the_last_batch_and_the_offsets_of_each_partition(self):
        batch = LastBatch(0, 4.25, 1000, 990)
        row = status_row(
            JobStatus(
                *("aggregate", "spark-aggregate", "metrics", 7, 3, (PartitionStatus(0, 1000, 1007),)),
                still_open=2,
                state=JobState("silent"),
                activity=Activity(0, 997_000, None, batch),
            )
        )
        self.assertEqual(("aggregate", "spark-aggregate", "metrics", "silent"), row[:4])
        self.assertEqual("1970-01-01T00:00:00.000+00:00", row[4])
        self.assertEqual(("1970-01-01T00:16:37.000+00:00", 7, 3, "periods to publish", 2), row[5:10])
        last_batch, evaluation, partitions = row[10:]
        self.assertEqual(
            "1970-01-01T00:00:00.000+00:00: 1,000 offsets, 990 records, 4.2 s", last_batch.human_readable()
        )
        self.assertIsNone(evaluation)
        self.assertEqual("0: stored below 1,000 of 1,007", partitions.human_readable())
        self.assertEqual(1007, partitions.machine_readable()[0]["end"])

    def test_without_spark_the_error_names_the_extra(self):
        class Sparkless(Job):
            def __init__(self, conf):
                pass

            def run(self, request, watcher):
                raise SparkUnavailable("pyspark is not installed: install monasca-common[spark]")

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.jobs.job.job_class", lambda name: Sparkless))
        self.assert_refused("run", "aggregate", says="install monasca-common[spark]")

    def test_the_result_of_a_run_is_printed_as_text_and_json(self):
        class Done(Job):
            def __init__(self, conf):
                pass

            def run(self, request, watcher):
                watcher.tell(JobProgress(1, 6, 0.1))
                return JobProgress(7, 0, 0.5, {"records": 5, "once": int(request.once)})

        self.useFixture(fixtures.MonkeyPatch("monasca_common.pipeline.jobs.job.job_class", lambda name: Done))
        status, out, err = self.run_command("run", "aggregate", "--once")
        self.assertEqual(0, status)
        self.assertThat(out, StartsWith("aggregate: 7 offsets done, 0 left\n"))
        self.assertThat(err, Contains("aggregate: 1 offsets done, 6 left"))
        report = json.loads(self.run_command("run", "aggregate", "-f", "json")[1])
        self.assertEqual(
            ("aggregate", 7, {"records": 5, "once": 0}), (report["job"], report["done"], report["results"])
        )


class SpecificationsCommandTest(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        row = shipped_row("mem_total_all", aggregated_metric_name="cpu_agg") | {"metric_id": "cpu_all"}
        self.files = [
            *("--pre-transforms", self.file("pre", pre_row("cpu", "cpu_all"))),
            *("--transforms", self.file("transforms", row)),
        ]

    def file(self, name, row):
        path = self.folder / name
        path.write_text(json.dumps(row) + "\n")
        return str(path)

    def run_command(self, *arguments):
        """Return the exit status, standard output and standard error."""
        app = MonascaCommon()
        app.stdout, app.stderr = io.StringIO(), io.StringIO()
        status = app.run(["pipeline", "specifications", *arguments])
        return status, app.stdout.getvalue(), app.stderr.getvalue()

    def test_a_refused_row_is_reported_with_its_file(self):
        bad = self.file("bad", pre_row("cpu", "no_such_id"))
        status, _, err = self.run_command("check", *self.files, "--pre-transforms", bad)
        self.assertEqual(1, status)
        self.assertIn(f"{bad} row 1: metric_id_list[0]", err)

    def test_a_missing_file_is_reported(self):
        status, _, err = self.run_command("check", "--transforms", "/nowhere/x.jsonl")
        self.assertEqual(1, status)
        self.assertIn("/nowhere/x.jsonl cannot be read", err)

    def test_the_shipped_specifications_are_valid(self):
        status, out, _ = self.run_command("check", "-f", "json")
        self.assertEqual((0, {"pre_transforms": 17, "transforms": 26, "warnings": []}), (status, json.loads(out)))
