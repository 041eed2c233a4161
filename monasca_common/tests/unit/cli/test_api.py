# SPDX-License-Identifier: Apache-2.0
import io
import os
from pathlib import Path
from unittest import mock

import fixtures
import prometheus_client  # noqa: F401  # before the command, which configures it for several processes

from monasca_common.cli import main
from monasca_common.cli.api import metrics_of_all_workers
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class TestStart(ConfigurationTestCase):
    def refusal(self, text):
        app = main.MonascaCommon()
        app.stderr = io.StringIO()
        path = self.path_of(f"[kafka]\nbootstrap_servers = localhost:9092\n{text}")
        self.assertEqual(1, app.run(["api", "--config-file", path]))
        return app.stderr.getvalue()

    def test_without_keystone_settings_the_api_does_not_start(self):
        for text in ("", "[api]\nauth_strategy = keystone\n", "[keystone_authtoken]\nauth_type = password\n"):
            self.assertRegex(self.refusal(text), "^monasca-common api: .*auth_url.*username.*noauth")

    def test_topics_are_checked_before_the_api_serves(self):
        checked = mock.Mock(side_effect=ConfigurationError("topic metrics: there is one replica"))
        with mock.patch("monasca_common.cli.api.check_at_start", checked):
            self.assertIn(
                "topic metrics: there is one replica", self.refusal("[api]\nauth_strategy = noauth\nport = 0\n")
            )
        self.assertEqual("api", checked.call_args.args[0])

    def test_missing_rules_prevent_the_start(self):
        self.assertIn("policy_file", self.refusal("[oslo_policy]\npolicy_file = /no/such/policy.yaml\n"))


class TestMetricsFolder(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.all = Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("tempfile.tempdir", str(self.all)))

    def test_the_folder_is_removed_after_the_block(self):
        with metrics_of_all_workers():
            (Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]) / "counts.db").touch()
        self.assertEqual([], list(self.all.iterdir()))

    def test_only_the_metrics_of_an_earlier_run_are_removed_from_a_given_folder(self):
        self.useFixture(fixtures.EnvironmentVariable("PROMETHEUS_MULTIPROC_DIR", str(self.all)))
        for name in ("counter_7.db", "gauge_livesum_7.db", "histogram_7.db", "summary_7.db", "positions.db"):
            (self.all / name).touch()
        with metrics_of_all_workers():
            self.assertEqual(["positions.db"], [file.name for file in self.all.iterdir()])

    def test_a_forked_child_does_not_remove_the_folder(self):
        with metrics_of_all_workers():
            self.useFixture(fixtures.MockPatch("os.getpid", lambda: 0))
        self.assertEqual(1, len(list(self.all.iterdir())))
