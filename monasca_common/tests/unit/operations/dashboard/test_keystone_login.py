# SPDX-License-Identifier: Apache-2.0
import datetime
from types import SimpleNamespace
from unittest import mock

from keystoneauth1 import exceptions
from keystoneauth1.identity import v3
from oslo_config import cfg
from oslotest import base

from monasca_common.kafka.errors import ConfigurationError, RetriableError
from monasca_common.operations.dashboard.keystone_login import KeystoneLogin
from monasca_common.operations.dashboard.settings import DashboardSettings


class PolicyFileTest(base.BaseTestCase):
    def login(self, rules):
        return self.login_by(self.create_tempfiles([("policy", rules)], ".yaml")[0])

    def login_by(self, policy_file):
        path = self.create_tempfiles([("dashboard", f"[oslo_policy]\npolicy_file = {policy_file}\n")], ".conf")[0]
        conf = cfg.ConfigOpts()
        conf(["--config-file", path])
        return KeystoneLogin(DashboardSettings(keystone_url="http://127.0.0.1:1/v3"), conf)

    def may_look(self, login, role):
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        access = SimpleNamespace(role_names=[role], project_id="p", user_id="u", expires=ends, auth_token="t")
        with mock.patch.object(v3.Password, "get_access", return_value=access):
            return login.log_in("ada", "correct horse battery", "p1") is not None

    def test_a_policy_file_decides_which_roles_have_access(self):
        login = self.login('"monasca_dashboard:look": "role:operator"\n')
        self.assertEqual((True, False), (self.may_look(login, "operator"), self.may_look(login, "admin")))

    def test_a_file_without_the_rule_permits_only_admins(self):
        login = self.login('"another:rule": "role:operator"\n')
        self.assertEqual((False, True), (self.may_look(login, "operator"), self.may_look(login, "admin")))

    def test_a_file_that_cannot_be_used_stops_the_start(self):
        for rules in ('"monasca_dashboard:look": "rule:nobody_has_defined"\n', "- a list\n", "\t:\n"):
            error = self.assertRaises(ConfigurationError, self.login, rules)
            self.assertIn("policy_file in group [oslo_policy]", str(error))

    def test_a_missing_file_prevents_the_start(self):
        self.assertIn(
            "/no/such/policy.yaml", str(self.assertRaises(ConfigurationError, self.login_by, "/no/such/policy.yaml"))
        )


class KeystoneLoginTest(base.BaseTestCase):
    def log_in(self, error):
        conf = cfg.ConfigOpts()
        conf([])
        login = KeystoneLogin(DashboardSettings(keystone_url="http://127.0.0.1:1/v3"), conf)
        with mock.patch.object(v3.Password, "get_access", side_effect=error):
            return login.log_in("ada", "correct horse battery", "p1")

    def test_a_server_other_than_keystone_is_not_a_wrong_password(self):
        self.assertIsNone(self.log_in(exceptions.Unauthorized()))
        for error in (exceptions.NotFound(), exceptions.ConnectFailure()):
            self.assertRaises(RetriableError, self.log_in, error)
