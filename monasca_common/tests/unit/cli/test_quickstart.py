# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.cli import quickstart
from monasca_common.cli.main import main
from monasca_common.quickstart.services import ServiceFailed


class PortTest(base.BaseTestCase):
    def test_the_apis_port_is_none_that_systems_hand_out_for_outgoing_connections(self):
        written = self.useFixture(
            fixtures.MockPatchObject(quickstart, "write_configuration", side_effect=ServiceFailed("enough"))
        ).mock
        command = mock.MagicMock(spec=quickstart.Quickstart)
        with contextlib.ExitStack() as stack:
            wanted = argparse.Namespace(keep_data=None)
            self.assertRaises(ServiceFailed, quickstart.Quickstart._run, command, wanted, stack)
        port = written.call_args.args[2]
        self.assertTrue(20_000 <= port < 32_000, port)


class InterruptTest(base.BaseTestCase):
    """Nothing runs here; what stands for Kafka and the services notes when it is stopped."""

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
                "show",
                "aggregates",
                "alarm",
                "OwnLoad",
                "webhook",
            )
        }
        self.stand_ins["webhook"].why_not.return_value = None
        self.has_java(True)
        self.useFixture(fixtures.MockPatchObject(quickstart, "real_kafka", lambda: self.broker("kafka")))
        self.useFixture(fixtures.MockPatchObject(quickstart, "mock", lambda _topics: self.broker("mock")))
        self.useFixture(fixtures.MockPatchObject(quickstart, "replace", lambda outcome, **_: outcome))
        self.folder = self.useFixture(fixtures.TempDir()).join("data")

    def has_java(self, has):
        missing = None if has else "there is no Java"
        self.useFixture(fixtures.MockPatchObject(quickstart, "java_is_missing", lambda: missing))

    @contextlib.contextmanager
    def broker(self, kind):
        yield mock.Mock(kind=kind, bootstrap_servers="127.0.0.1:1", topic_check_seconds=60.0)
        self.out.write("(Kafka ends)\n")

    def interrupted(self, where, *arguments):
        """The exit status, and the lines from the one on that says what is stopped."""
        where.side_effect = KeyboardInterrupt
        status = main(["quickstart", *arguments])
        self.out.seek(0)
        lines = self.out.read().splitlines()
        return status, lines[[line.startswith("stopping") for line in lines].index(True) :]

    def test_in_the_middle_it_says_what_it_stops_and_when_that_is_done(self):
        status, lines = self.interrupted(self.stand_ins["Run"].return_value.go)
        self.assertEqual(130, status)
        kafka = "the API, the persister and Apache Kafka"
        self.assertEqual(
            [
                f"stopping the dashboard, the service of lag, the audit, {kafka}; the data is removed",
                "(Kafka ends)",
                "everything is stopped",
            ],
            lines,
        )

    def test_what_stays_up_is_named_as_well(self):
        self.stand_ins["aggregates"].aggregate.return_value = []
        status, lines = self.interrupted(
            self.stand_ins["ServiceProcess"].return_value.check, "--keep-data", self.folder
        )
        self.assertEqual(0, status)
        what = "stopping the dashboard, the service of lag, the audit, the API, the persister and Apache Kafka"
        self.assertEqual(f"{what}; the data stays in {self.folder}", lines[0])
        self.assertEqual("everything is stopped", lines[-1])

    def test_what_was_not_started_is_not_named(self):
        self.has_java(False)
        status, lines = self.interrupted(self.stand_ins["run_command"])
        self.assertEqual((130, "stopping the broker within this process; the data is removed"), (status, lines[0]))

    def test_spark_is_named_while_it_runs(self):
        self.stand_ins["aggregates"].why_not.return_value = None
        status, lines = self.interrupted(self.stand_ins["aggregates"].aggregate)
        self.assertEqual(130, status)
        self.assertIn(
            "Spark, the notification service, the evaluator, the dashboard, the service of lag, the audit, the API, ",
            lines[0],
        )

    def test_the_evaluator_is_named_while_the_alarm_is_awaited(self):
        self.stand_ins["aggregates"].why_not.return_value = None
        self.stand_ins["aggregates"].aggregate.return_value = []
        status, lines = self.interrupted(self.stand_ins["alarm"].AlarmRun.return_value.go)
        self.assertEqual(130, status)
        self.assertIn(
            "stopping the notification service, the evaluator, the dashboard, the service of lag, the audit, the API, ",
            lines[0],
        )

    def test_without_the_extra_nobody_is_notified_and_the_alarm_is_shown_all_the_same(self):
        self.stand_ins["aggregates"].why_not.return_value = None
        self.stand_ins["aggregates"].aggregate.return_value = []
        self.stand_ins["webhook"].why_not.return_value = "jinja2 is not installed"
        main(["quickstart", "--once"])
        self.out.seek(0)
        self.assertIn("nobody is notified: jinja2 is not installed", self.out.read())
        self.assertIsNone(self.stand_ins["alarm"].AlarmRun.call_args.args[2])

    def test_an_alarm_that_did_not_come_back_is_the_exit_status(self):
        self.stand_ins["Run"].return_value.go.return_value.good = False
        self.assertEqual(1, main(["quickstart", "--once"]))

    def test_without_an_interrupt_it_does_not_speak_of_one(self):
        self.stand_ins["aggregates"].aggregate.return_value = []
        main(["quickstart", "--once"])
        self.out.seek(0)
        self.assertNotIn("stop", self.out.read())
