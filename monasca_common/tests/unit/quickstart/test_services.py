# SPDX-License-Identifier: Apache-2.0


import http.client
import io
import time
from pathlib import Path
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.quickstart import run, services
from monasca_common.quickstart.rows import Count
from monasca_common.quickstart.services import ServiceFailed, ServiceProcess, run_command


class RunCommandTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.configuration = Path(self.useFixture(fixtures.TempDir()).join("none.conf"))

    def test_a_failed_command_is_reported_with_its_output(self):
        error = self.assertRaises(ServiceFailed, run_command, "db", "upgrade", configuration=self.configuration)
        self.assertIn("monasca-common db upgrade: ", str(error))
        self.assertIn(str(self.configuration), str(error))

    def test_a_command_that_does_not_end_is_stopped(self):
        self.useFixture(fixtures.MockPatchObject(services, "_COMMAND_SECONDS", 0.0))
        error = self.assertRaises(ServiceFailed, run_command, "db", "upgrade", configuration=self.configuration)
        self.assertEqual("monasca-common db upgrade took longer than 0 s", str(error))


class UnreadMessagesTest(base.BaseTestCase):
    def test_the_unread_messages_of_the_persister_are_counted(self):
        with mock.patch.object(services, "run_command", return_value='[{"left": 2}, {"left": 1}]') as command:
            self.assertEqual(6, services.unread_messages(Path("quickstart.conf")))
        groups = [call.args[call.args.index("--group") + 1] for call in command.call_args_list]
        for group in groups:
            self.assertIn(f"group_id = {group}\n", services._CONFIGURATION)


class ServiceProcessTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.supervisor = mock.Mock()
        self.job = ServiceProcess(self.supervisor, "pipeline run aggregate --once", self.folder / "a.conf")
        self.log = self.folder / "pipeline-run-aggregate.log"

    def test_a_failure_has_the_last_line_of_the_command_and_the_path_of_the_log_instead_of_javas_output(self):
        java = "\tat org.apache.spark.X\n" * 450
        self.log.write_text(f"{java}monasca-common pipeline run: Spark does not start\n{java}")
        self.supervisor.poll.return_value = 1

        error = str(self.assertRaises(ServiceFailed, self.job.finished))

        self.assertIn(f"monasca-common pipeline run: Spark does not start (log: {self.log})", error)
        self.assertEqual(1, len(error.splitlines()))

    def test_a_log_without_a_line_of_the_command_is_quoted_by_its_last_line(self):
        self.supervisor.poll.return_value = -9
        self.assertIn("the log is empty", str(self.assertRaises(ServiceFailed, self.job.check)))
        self.log.write_text("one\ntwo\n\n")
        self.assertIn("ended with -9: two (log: ", str(self.assertRaises(ServiceFailed, self.job.check)))

    def test_a_job_that_has_ended_returns_its_output(self):
        self.supervisor.poll.return_value = None
        self.assertIsNone(self.job.finished())
        self.log.write_text("{}\n")
        self.supervisor.poll.return_value = 0
        self.assertEqual("{}\n", self.job.finished())


class CaughtUpTest(base.BaseTestCase):
    def caught_up(self, **values):
        text = "".join(f'monasca_pipeline_{name}{{job="x"}} {value}\n' for name, value in values.items())
        with mock.patch("urllib.request.urlopen", return_value=io.BytesIO(text.encode())):
            return services._caught_up("http://127.0.0.1:1/metrics")

    def test_a_job_has_caught_up_after_a_batch_without_remaining_messages(self):
        self.assertTrue(self.caught_up(last_batch_time_seconds=1, behind_offsets=0))
        self.assertFalse(self.caught_up(last_batch_time_seconds=1, behind_offsets=2))

    def test_without_both_metrics_a_job_has_not_caught_up(self):
        self.assertFalse(self.caught_up())
        self.assertFalse(self.caught_up(last_batch_time_seconds=1))

    def test_an_interrupted_response_is_ignored(self):
        with mock.patch("urllib.request.urlopen", side_effect=http.client.BadStatusLine("x")):
            self.assertFalse(services._caught_up("http://127.0.0.1:1/metrics"))


class TestRun(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        for name in ("Poster", "RowWatch"):
            self.useFixture(fixtures.MockPatchObject(run, name))
        self.useFixture(fixtures.MockPatchObject(run, "_FROZEN_SECONDS", 0.0))
        self.kafka, self.persister, own = mock.Mock(), mock.Mock(), mock.Mock()
        self.persister.kill_workers.return_value = 1
        own.sample.return_value = [{}]
        self.slow = run.Run(self.kafka, self.persister, Path("nowhere"), 1, seconds=8, say=lambda _: None)
        self.slow._post(own, time.monotonic() - 9)

    def test_a_slow_machine_freezes_kafka_and_kills_the_persister_late(self):
        self.assertEqual([mock.call.freeze(), mock.call.thaw()], self.kafka.method_calls)
        self.persister.kill_workers.assert_called_once()

    def test_items_that_were_never_posted_are_not_counted_as_repeats(self):
        with mock.patch.object(run, "count", return_value=Count(0, 0, 0)):
            self.assertEqual(0, self.slow.summary().repeated_posts)
