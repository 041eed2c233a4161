# SPDX-License-Identifier: Apache-2.0
import io

import prometheus_client  # noqa: F401  # before the command, which sets it up for processes of its own

from monasca_common.cli import main
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

    def test_neither_with_rules_that_are_not_there(self):
        self.assertIn("policy_file", self.refusal("[oslo_policy]\npolicy_file = /no/such/policy.yaml\n"))
