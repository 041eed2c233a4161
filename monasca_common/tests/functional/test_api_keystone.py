# SPDX-License-Identifier: Apache-2.0
"""Tokens of a real Keystone: whose they are, what their roles may do, and what is said of bad ones."""

import json
import shutil
import tempfile

from monasca_common.tests.functional.api_case import METRICS, ApiProcessCase, metric
from monasca_common.tests.functional.keystone_server import PASSWORD, KeystoneServer

LOGS = "/v2.0/logs"
LOG_BODY = {"logs": [{"message": "a"}]}


class TestKeystone(ApiProcessCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = tempfile.mkdtemp(prefix="keystone-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.keystone = keystone = KeystoneServer(cls.folder)
        keystone.set_up()
        cls.addClassCleanup(keystone.stop)
        keystone.start()
        roles = ("monasca-user", "monasca-agent", "monasca-read-only-user", "monitoring-delegate")
        ids = {name: keystone.role(name) for name in roles}
        cls.project = keystone.project("observed")
        cls.other_project = keystone.project("other")
        keystone.user("writer", cls.project, ids["monasca-user"])
        keystone.user("reader", cls.project, ids["monasca-read-only-user"])
        keystone.user("agent", cls.project, ids["monasca-agent"], ids["monitoring-delegate"])
        keystone.user("stranger", cls.other_project, ids["monasca-user"])

    def authenticated_api(self):
        section = [
            "[keystone_authtoken]",
            f"www_authenticate_uri = {self.keystone.url}",
            f"auth_url = {self.keystone.url}",
            "auth_type = password",
            "username = admin",
            f"password = {PASSWORD}",
            "project_name = admin",
            "user_domain_id = default",
            "project_domain_id = default",
            "http_connect_timeout = 30",
            "http_request_max_retries = 0",
        ]
        topics = [f"logs_topic = {self.fixture.topic()}", "auth_strategy = keystone"]
        return self.api(api=topics, more="\n".join(section))

    def setUp(self):
        super().setUp()
        self.served = self.authenticated_api()

    def post(self, user, body, path=METRICS, project="observed"):
        token = self.keystone.token(user, project)
        return self.served.post(body, {"X-Auth-Token": token}, path)

    def tenants(self):
        return [json.loads(record.value)["meta"]["tenantId"] for record in self.log(self.topic, self.partitions)]

    def assert_unauthorized(self, answer):
        status, headers, body = answer
        self.assertEqual((401, 401), (status, body["error"]["code"]))
        self.assertIn(self.keystone.url, headers["www-authenticate"])

    def test_the_tenant_is_the_tokens_project(self):
        self.assertEqual(204, self.post("writer", metric())[0])
        self.assertEqual(204, self.post("stranger", metric(tenantId=self.project), project="other")[0])
        self.assertEqual(sorted([self.project, self.other_project]), sorted(self.tenants()))

    def test_no_token_a_bad_token_and_headers_that_pretend_to_be_of_one(self):
        self.assert_unauthorized(self.served.post(metric()))
        self.assert_unauthorized(self.served.post(metric(), {"X-Auth-Token": "gAAAA-no-such-token"}))
        pretence = {"X-Identity-Status": "Confirmed", "X-Project-Id": self.project, "X-Roles": "admin"}
        self.assert_unauthorized(self.served.post(metric(), pretence))
        self.assert_unauthorized(self.served.post(metric(), {**pretence, "X-Auth-Token": "x"}))
        self.assertEqual([], self.tenants())

    def test_a_token_without_a_project_is_nobodys(self):
        token = self.keystone.token("writer", None)
        self.assert_unauthorized(self.served.post(metric(), {"X-Auth-Token": token}))

    def test_a_role_that_only_reads_does_not_write_whatever_the_body(self):
        self.assert_unauthorized(self.post("reader", metric()))
        self.assert_unauthorized(self.post("reader", b"not json"))
        token = self.keystone.token("reader", "observed")
        status = self.served.request("GET", METRICS, headers={"X-Auth-Token": token})[0]
        self.assertEqual(501, status)  # it may; there is no database here

    def test_the_agent_posts_metrics_for_any_tenant_and_nothing_else(self):
        self.assertEqual(204, self.post("agent", metric(), f"{METRICS}?tenant_id={self.other_project}")[0])
        self.assertEqual([self.other_project], self.tenants())
        self.assert_unauthorized(self.post("agent", LOG_BODY, LOGS))
        self.assertEqual(204, self.post("writer", LOG_BODY, LOGS)[0])

    def test_nobody_else_names_another_tenant(self):
        status, _, body = self.post("writer", metric(), f"{METRICS}?tenant_id={self.other_project}")
        self.assertEqual((403, 403), (status, body["error"]["code"]))
        self.assertEqual([], self.tenants())

    def test_versions_and_health_need_no_token(self):
        for path in ("/", "/v2.0", "/healthcheck"):
            self.assertEqual(200, self.served.request("GET", path)[0])

    def test_a_keystone_that_is_away_is_no_fault_of_the_token(self):
        token = self.keystone.token("writer", "observed")
        self.keystone.stop()
        try:
            status, headers, body = self.served.post(metric(), {"X-Auth-Token": token})
            self.assertEqual((503, 503), (status, body["error"]["code"]))
            self.assertIn("retry-after", headers)
            self.assertEqual(401, self.served.post(metric())[0])
        finally:
            self.keystone.start()
        self.assertEqual(204, self.served.post(metric(), {"X-Auth-Token": token})[0])
