# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from keystoneauth1 import exceptions
from keystoneauth1.identity import v3
from oslo_config import cfg
from oslotest import base

from monasca_common.kafka.errors import RetriableError
from monasca_common.monitoring.dashboard.keystone_login import KeystoneLogin
from monasca_common.monitoring.dashboard.settings import DashboardSettings


class KeystoneLoginTest(base.BaseTestCase):
    def log_in(self, error):
        conf = cfg.ConfigOpts()
        conf([])
        login = KeystoneLogin(DashboardSettings(keystone_url="http://127.0.0.1:1/v3"), conf)
        with mock.patch.object(v3.Password, "get_access", side_effect=error):
            return login.log_in("ada", "correct horse battery", "p1")

    def test_what_is_no_keystone_is_no_wrong_password(self):
        self.assertIsNone(self.log_in(exceptions.Unauthorized()))
        for error in (exceptions.NotFound(), exceptions.ConnectFailure()):
            self.assertRaises(RetriableError, self.log_in, error)
