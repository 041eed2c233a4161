# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import json
import os
import sys
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.cli import quickstart
from monasca_common.cli.command import Terminated
from monasca_common.cli.main import main
from monasca_common.devbroker import DevBrokerError
from monasca_common.quickstart import aggregates
from monasca_common.quickstart.services import ServiceFailed
from monasca_common.quickstart.table import RunSummary, show_stages


class PortTest(base.BaseTestCase):
    def test_the_port_of_the_api_is_outside_the_ephemeral_range(self):
        written = self.useFixture(
            fixtures.MockPatchObject(quickstart, "write_configuration", side_effect=ServiceFailed("enough"))
        ).mock
        self.useFixture(fixtures.MockPatchObject(quickstart, "KafkaCluster"))
        command = mock.MagicMock(spec=quickstart.Quickstart)
        with contextlib.ExitStack() as stack:
            command._outcome = RunSummary()
            wanted = argparse.Namespace(keep_data=None, source="machine", formats=False)
            self.assertRaises(ServiceFailed, quickstart.Quickstart._run, command, wanted, stack)
        port = written.call_args.args[2]
        self.assertTrue(20_000 <= port < 32_000, port)


class QuickstartCase(base.BaseTestCase):
    """Runs the command with mocks in place of Kafka and the services."""

    def setUp(self):
        super().setUp()
        self.out = self.useFixture(fixtures.StringStream("stdout")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", self.out))
        self.stand_ins = {
            name: self.useFixture(fixtures.MockPatchObject(quickstart, name)).mock
            for name in (
                "Supervisor",
                "ServiceProcess",
                "Run",
                "run_command",
                "unread_messages",
                "show",
                "show_stages",
                "aggregates",
                "alarm",
                "GeneratedLoad",
                "webhook",
            )
        }
        self.stand_ins["aggregates"].JOB = aggregates.JOB
        self.stand_ins["Run"].return_value.summary.return_value = RunSummary(posted=1, acknowledged=1, rows=1)
        self.stand_ins["aggregates"].averages_of.return_value = []
        self.stand_ins["unread_messages"].return_value = 0
        self.useFixture(fixtures.MockPatchObject(quickstart, "KafkaCluster", self.kafka))
        self.folder = self.useFixture(fixtures.TempDir()).join("data")

    @contextlib.contextmanager
    def kafka(self):
        yield mock.Mock(bootstrap_servers="127.0.0.1:1")
        self.out.write("(Kafka ends)\n")


class InterruptTest(QuickstartCase):
    def interrupted(self, where, *arguments, by=KeyboardInterrupt):
        """Return the exit status, and the lines from "stopping" on."""
        where.side_effect = by
        status = main(["quickstart", *arguments])
        self.out.seek(0)
        lines = self.out.read().splitlines()
        return status, lines[[line.startswith("stopping") for line in lines].index(True) :]

    def test_an_interrupt_is_reported_before_and_after_the_services_stop(self):
        status, lines = self.interrupted(self.stand_ins["Run"].return_value.go)
        self.assertEqual(130, status)
        self.assertEqual(["stopping; the data is removed", "(Kafka ends)", "all services are stopped"], lines)

    def test_the_status_after_sigterm_is_143(self):
        self.assertEqual(143, self.interrupted(self.stand_ins["Run"].return_value.go, by=Terminated)[0])

    def test_an_interrupt_after_the_tables_ends_with_status_0(self):
        status, lines = self.interrupted(
            self.stand_ins["ServiceProcess"].return_value.check, "--keep-data", self.folder
        )
        self.assertEqual(0, status)
        self.assertEqual(f"stopping; the data is kept in {self.folder}", lines[0])
        self.assertEqual("all services are stopped", lines[-1])

    def test_a_lost_row_ends_with_status_1(self):
        self.stand_ins["Run"].return_value.summary.return_value = RunSummary(posted=1, lost=1)
        self.assertEqual(1, main(["quickstart", "--once"]))

    def test_a_missing_prometheus_is_named(self):
        self.useFixture(fixtures.EnvironmentVariable("PATH", "/nowhere"))
        error = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", error))
        self.assertEqual(1, main(["quickstart", "--once", "--from", "prometheus"]))
        error.seek(0)
        self.assertIn("prometheus is not on the PATH: install it, on Debian with apt-get", error.read())

    def test_without_an_interrupt_nothing_is_reported_as_stopped(self):
        main(["quickstart", "--once"])
        self.out.seek(0)
        self.assertNotIn("stop", self.out.read())


class FailureTest(QuickstartCase):
    """Failed stages and the counts so far are always reported."""

    def setUp(self):
        super().setUp()
        self.err = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", self.err))
        self.stand_ins["show_stages"].side_effect = show_stages

    def report(self):
        """Return the exit status, the printed object, and the errors by failed stage."""
        status = main(["quickstart", "--once", "-f", "json"])
        self.out.seek(0)
        [printed] = [json.loads(line) for line in self.out.read().splitlines() if line.startswith("{")]
        return status, printed, {each["name"]: each["error"] for each in printed["stages"] if each["error"]}

    def table(self):
        self.err.seek(0)
        return self.err.read()

    def test_a_stage_on_spark_that_fails_is_reported_with_the_counts(self):
        self.stand_ins["aggregates"].averages_of.side_effect = ServiceFailed("Java ended (log: /x/aggregate.log)")
        self.stand_ins["alarm"].AlarmRun.return_value.go.side_effect = ServiceFailed("the API ended")

        status, printed, failed = self.report()

        self.assertEqual((1, 1), (status, printed["rows"]))
        self.assertEqual({"alarm": "the API ended", "hourly averages": "Java ended (log: /x/aggregate.log)"}, failed)
        self.assertIn("failed: the API ended", self.table())

    def test_a_post_that_fails_is_reported_with_the_counts_so_far(self):
        self.stand_ins["Run"].return_value.go.side_effect = ServiceFailed("the persister ended")

        status, printed, failed = self.report()

        self.assertEqual((1, 1), (status, printed["posted"]))
        self.assertEqual({"from POST to row": "the persister ended"}, failed)

    def test_a_kafka_that_does_not_start_is_reported(self):
        self.useFixture(fixtures.MockPatchObject(quickstart, "KafkaCluster", side_effect=DevBrokerError("no jars")))

        status, printed, failed = self.report()

        self.assertEqual((1, 0, {"Kafka": "no jars"}), (status, printed["posted"], failed))

    def test_an_interrupt_is_reported(self):
        self.stand_ins["Run"].return_value.go.side_effect = KeyboardInterrupt

        status, _, failed = self.report()

        self.assertEqual((130, {"from POST to row": "interrupted"}), (status, failed))

    def kept(self):
        """Return the folder that the run creates."""
        folder = self.useFixture(fixtures.TempDir()).join("kept")
        os.mkdir(folder)
        self.useFixture(fixtures.MockPatch("tempfile.mkdtemp", return_value=folder))
        return folder

    def test_the_logs_of_a_failed_run_are_kept_and_their_folder_is_named(self):
        self.stand_ins["Run"].return_value.go.side_effect = ServiceFailed("the persister ended")
        kept = self.kept()

        self.report()

        self.assertTrue(os.path.isdir(kept))
        self.assertIn(f"logs and data are kept in {kept}", self.table())

    def test_the_data_of_a_run_with_a_lost_row_are_kept(self):
        summary = self.stand_ins["Run"].return_value.summary
        kept = self.kept()
        for lost, stays in ((1, True), (0, False)):
            summary.return_value = RunSummary(posted=1, acknowledged=1, rows=1 - lost, lost=lost)
            self.assertEqual(lost, main(["quickstart", "--once"]))
            self.assertEqual(stays, os.path.isdir(kept))

    def missing_rows(self, unread):
        """Return the exit status and the lost and late rows of a run without five rows."""
        self.stand_ins["Run"].return_value.summary.return_value = RunSummary(posted=9, acknowledged=9, rows=4, lost=5)
        self.stand_ins["Run"].return_value.go.side_effect = ServiceFailed("the persister ended")
        self.stand_ins["unread_messages"].side_effect = [unread]
        status, printed, _ = self.report()
        return status, printed["lost"], printed["late"]

    def test_missing_rows_are_late_if_their_messages_are_unread(self):
        self.assertEqual((1, 2, 3), self.missing_rows(3))

    def test_no_more_rows_are_late_than_are_missing(self):
        self.assertEqual((1, 0, 5), self.missing_rows(7))

    def test_missing_rows_are_lost_if_it_is_unknown_whether_their_messages_are_unread(self):
        self.assertEqual((1, 5, 0), self.missing_rows(ServiceFailed("no broker")))

    def test_an_unexpected_error_is_also_reported(self):
        self.stand_ins["Run"].return_value.go.side_effect = ValueError("a defect")

        status, _, failed = self.report()

        self.assertEqual((1, {"from POST to row": "ValueError('a defect')"}), (status, failed))

    def test_an_unexpected_error_of_a_stage_on_spark_is_a_failed_stage(self):
        self.stand_ins["aggregates"].averages_of.side_effect = KeyError("results")
        self.stand_ins["alarm"].AlarmRun.return_value.go.side_effect = BrokenPipeError("the load ended")

        status, printed, failed = self.report()

        self.assertEqual((1, 1), (status, printed["rows"]))
        self.assertEqual(
            {"alarm": "BrokenPipeError('the load ended')", "hourly averages": "KeyError('results')"}, failed
        )
        self.assertIn("failed: KeyError('results')", self.table())

    def test_the_json_report_names_a_package_that_is_not_installed(self):
        self.useFixture(fixtures.MonkeyPatch("sys.modules", {**sys.modules, "psutil": None}))

        status, _, failed = self.report()

        remedy = "psutil is not installed: install monasca-common[quickstart]"
        self.assertEqual((1, {"installed packages": remedy}), (status, failed))
