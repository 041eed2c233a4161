# SPDX-License-Identifier: Apache-2.0

import fixtures
from oslotest import base

from monasca_common.operations.dashboard.metrics_api import ApiUnavailable, MetricsApi
from monasca_common.operations.dashboard.settings import DashboardSettings


class ProxyTest(base.BaseTestCase):
    def test_a_proxy_of_the_environment_never_gets_the_token(self):
        self.useFixture(fixtures.EnvironmentVariable("http_proxy", "http://127.0.0.1:9"))
        self.useFixture(fixtures.EnvironmentVariable("no_proxy"))
        api = MetricsApi(DashboardSettings(login="none", api_url="http://127.0.0.1:1"))
        ports = []

        def connect(connection):
            ports.append(connection.port)
            raise ConnectionRefusedError

        self.useFixture(fixtures.MonkeyPatch("http.client.HTTPConnection.connect", connect))

        self.assertRaises(ApiUnavailable, api.reader("token").find, "/v2.0/metrics", {})

        self.assertEqual([1], ports)
