# SPDX-License-Identifier: Apache-2.0
import io
from unittest import mock

import prometheus_client  # noqa: F401  # before the command, which sets it up for processes of its own

from monasca_common.cli import main
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class TestStart(ConfigurationTestCase):
    def refusal(self, text):
        app = main.MonascaCommon()
        app.stderr = io.StringIO()
        path = self.path_of(f"[kafka]\nbootstrap_servers = localhost:9092\n{text}")
        self.assertEqual(1, app.run(["api", "--config-file", path]))
        return app.stderr.getvalue()

    def test_without_settings_of_keystone_it_does_not_start_and_names_them(self):
        for text in ("", "[api]\nauth_strategy = keystone\n", "[keystone_authtoken]\nauth_type = password\n"):
            self.assertRegex(self.refusal(text), "^monasca-common api: .*auth_url.*username.*noauth")

    def test_it_is_checked_before_it_serves_whether_its_topics_could_lose_messages(self):
        checked = mock.Mock(side_effect=ConfigurationError("topic metrics: there is one copy"))
        with mock.patch("monasca_common.cli.api.check_at_start", checked):
            self.assertIn("topic metrics: there is one copy", self.refusal("[api]\nauth_strategy = noauth\nport = 0\n"))
        self.assertEqual("api", checked.call_args.args[0])

    def test_neither_with_rules_that_are_not_there(self):
        self.assertIn("policy_file", self.refusal("[oslo_policy]\npolicy_file = /no/such/policy.yaml\n"))
