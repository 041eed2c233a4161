# SPDX-License-Identifier: Apache-2.0
"""Tests of rules with the headers of keystonemiddleware; functional tests use real tokens."""

import io
import json
import logging
import os
import pathlib
import re
import urllib.parse

import falcon
import fixtures
from falcon import testing
from oslo_config import cfg
from oslotest import base

from monasca_common.api import auth
from monasca_common.api.problems import serialize_error
from monasca_common.api.settings import ApiSettings
from monasca_common.tests.unit.api.api_case import ApiCase, metric
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

PAGE = pathlib.Path(__file__).parents[4] / "doc" / "source" / "admin" / "keystone.rst"


class Body(io.BytesIO):
    was_read = False

    def read(self, size=-1):
        self.was_read = True
        return super().read(size)


class Echo:
    def on_get(self, request, response):
        response.media = {"tenant": request.context.tenant}

    def on_post(self, request, response):
        request.bounded_stream.read()
        response.media = {"tenant": request.context.tenant}

    on_delete = on_get


class RulesCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        conf = cfg.ConfigOpts()
        conf([], project="monasca-common-tests", default_config_files=[], default_config_dirs=[])
        self.client = self.client_of(auth.Authorization(conf))

    def client_of(self, middleware):
        app = falcon.App(middleware=[middleware])
        app.req_options.strip_url_path_trailing_slash = True
        app.set_error_serializer(serialize_error)
        for path in ("/v2.0/metrics", "/v2.0/logs", "/v1.0/events", "/v2.0/notification-methods", "/api/v1/write"):
            app.add_route(path, Echo())
        return testing.TestClient(app)

    def request(self, method, path, roles, *, tenant="t1", status="Confirmed", **more):
        headers = {"X-Identity-Status": status, "X-Roles": roles, "X-Project-Id": tenant}
        headers = {name: value for name, value in headers.items() if value is not None}
        return self.client.simulate_request(method, path, headers=headers, **more)

    def code(self, *arguments, **named):
        return self.request(*arguments, **named).status_code


class TestRules(RulesCase):
    def test_roles_permit_their_requests(self):
        table = {
            "monasca-user": (200, 200, 200, 200),
            "admin": (200, 200, 200, 200),
            "monasca-agent": (200, 200, 401, 401),
            "monasca-read-only-user": (401, 401, 401, 200),
            "member,reader": (401, 401, 401, 401),
            "": (401, 401, 401, 401),
        }
        posts = ("/v2.0/metrics", "/api/v1/write", "/v2.0/logs")
        requests = (*(("POST", path) for path in posts), ("GET", "/v2.0/metrics"))
        got = {roles: tuple(self.code(*request, roles) for request in requests) for roles in table}
        self.assertEqual(table, got)

    def test_a_writing_role_overrides_a_read_only_role(self):
        for roles in ("monasca-read-only-user,monasca-user", "monasca-user, monasca-read-only-user"):
            self.assertEqual(200, self.code("POST", "/v2.0/logs", roles))

    def test_a_read_only_role_is_refused_before_the_body_is_read(self):
        body = Body(b"nothing")
        answer = self.request(
            "POST", "/v2.0/metrics", "monasca-read-only-user", extras={"wsgi.input": body, "CONTENT_LENGTH": "7"}
        )
        self.assertEqual((401, 401, False), (answer.status_code, answer.json["error"]["code"], body.was_read))

    def test_a_valid_token_with_a_project_is_required(self):
        self.assertEqual(401, self.code("GET", "/v2.0/metrics", "admin", status="Invalid"))
        self.assertEqual(401, self.code("GET", "/v2.0/metrics", "admin", status=None))
        self.assertEqual(401, self.code("GET", "/v2.0/metrics", "admin", tenant=None))

    def test_each_change_requires_a_writing_role(self):
        self.assertEqual(401, self.code("DELETE", "/v2.0/notification-methods", "monasca-read-only-user"))
        self.assertEqual(200, self.code("DELETE", "/v2.0/notification-methods", "monasca-user"))


class TestScope(RulesCase):
    """X-Scope-OrgID, which a proxy sets."""

    PATH = "/api/v1/write"

    def post(self, client, path=PATH, **headers):
        answer = client.simulate_post(path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        return (answer.status_code, answer.json.get("tenant"))

    def scoped(self, **options):
        conf = cfg.ConfigOpts()
        conf([], project="monasca-common-tests", default_config_files=[], default_config_dirs=[])
        return self.client_of(auth.Authorization(conf, **options))

    def test_by_default_it_is_ignored(self):
        client = self.scoped()
        self.assertEqual((401, None), self.post(client, X_Scope_OrgID="t9"))
        confirmed = {"X_Identity_Status": "Confirmed", "X_Roles": "monasca-agent", "X_Project_Id": "t1"}
        self.assertEqual((200, "t1"), self.post(client, X_Scope_OrgID="t9", **confirmed))
        client = self.client_of(auth.NoAuthentication(ApiSettings(noauth_tenant="default")))
        self.assertEqual((200, "default"), self.post(client, X_Scope_OrgID="t9"))

    def test_it_is_the_tenant_of_paths_of_other_systems_if_it_is_trusted(self):
        client = self.scoped(trust_scope=True)
        self.assertEqual((200, "t9"), self.post(client, X_Scope_OrgID="t9"))
        self.assertEqual((200, "t9"), self.post(client, self.PATH + "/", X_Scope_OrgID="t9"))
        answer = client.simulate_post(self.PATH, headers={"X-Scope-OrgID": ""})
        self.assertEqual(422, answer.status_code)
        self.assertIn("correct tenant_id, or the header that names it", answer.json["error"]["message"])
        self.assertEqual((401, None), self.post(client, "/v2.0/metrics", X_Scope_OrgID="t9"))
        self.assertEqual((401, None), self.post(client))

    def test_a_tenant_in_utf8_is_the_tenant_of_the_query(self):
        client = self.client_of(auth.NoAuthentication(ApiSettings(trust_scope_header=True)))
        for tenant in ("größe", "t9"):
            header = tenant.encode().decode("latin-1")  # as WSGI servers decode headers
            self.assertEqual((200, tenant), self.post(client, X_Scope_OrgID=header))
            answer = client.simulate_post("/v2.0/metrics", query_string=urllib.parse.urlencode({"tenant_id": tenant}))
            self.assertEqual(tenant, answer.json["tenant"])
        self.assertEqual((422, None), self.post(client, X_Scope_OrgID="gr\xf6\xdfe"))

    def test_a_client_behind_the_proxy_cannot_name_another_tenant(self):
        settings = ApiSettings(noauth_tenant="default", trust_scope_header=True)
        clients = (self.scoped(trust_scope=True), self.client_of(auth.NoAuthentication(settings)))
        for client in clients:
            for path in (self.PATH, f"{self.PATH}?tenant_id=t1"):
                self.assertEqual((200, "t9"), self.post(client, path, X_Scope_OrgID="t9", X_Project_Id="t1"))
            self.assertEqual((422, None), self.post(client, X_Scope_OrgID="", X_Project_Id="t1"))


class TestDocumentation(base.BaseTestCase):
    def test_each_rule_has_its_row_with_its_roles(self):
        rows = re.findall(
            r"\* - ``(monasca:\w+)``\n     - .*?\n     - (.*?)\n(?=   \*|\n)", PAGE.read_text(), re.DOTALL
        )
        reported = {rule: set(re.findall("``([^`]+)``", roles)) for rule, roles in rows}
        self.assertEqual(
            {rule.name: set(re.findall(r"role:(\S+)", rule.check_str)) for rule in auth.list_rules()}, reported
        )


class TestTenant(RulesCase):
    def test_the_tenant_is_the_tokens_project(self):
        self.assertEqual("t1", self.request("GET", "/v2.0/metrics", "monasca-user").json["tenant"])

    def test_a_delegate_may_name_another_tenant(self):
        for roles in ("monasca-agent,monitoring-delegate", "admin"):
            answer = self.request("POST", "/v2.0/metrics", roles, params={"tenant_id": "t2"})
            self.assertEqual("t2", answer.json["tenant"])

    def test_other_roles_may_not_name_another_tenant(self):
        answer = self.request("POST", "/v2.0/metrics", "monasca-user", params={"tenant_id": "t2"})
        self.assertEqual((403, 403), (answer.status_code, answer.json["error"]["code"]))

    def test_each_role_may_name_its_own_tenant(self):
        for method in ("GET", "POST"):
            answer = self.request(method, "/v2.0/metrics", "monasca-user", params={"tenant_id": "t1"})
            self.assertEqual("t1", answer.json["tenant"])

    def test_logs_accept_project_id_as_tenant_id(self):
        for path in ("/v2.0/logs", "/v2.0/logs/"):
            answer = self.request("POST", path, "admin", params={"project_id": "t2"})
            self.assertEqual("t2", answer.json["tenant"], path)
            self.assertEqual(403, self.code("POST", path, "monasca-user", params={"project_id": "t2"}))
            self.assertEqual(200, self.code("POST", path, "monasca-user", params={"project_id": "t1"}))

    def test_two_names_for_one_tenant_must_be_the_same(self):
        for project, code in (("t2", 200), ("t3", 422)):
            named = {"tenant_id": "t2", "project_id": project}
            self.assertEqual(code, self.code("POST", "/v2.0/logs", "admin", params=named))

    def test_other_paths_ignore_project_id(self):
        answer = self.request("POST", "/v2.0/metrics", "monasca-user", params={"project_id": "t2"})
        self.assertEqual("t1", answer.json["tenant"])

    def test_the_role_is_checked_before_the_named_tenant(self):
        self.assertEqual(401, self.code("POST", "/v2.0/metrics", "monasca-read-only-user", params={"tenant_id": "x"}))

    def test_a_tenant_must_keep_its_rule(self):
        for tenant in ("x" * 300, "\x00"):
            answer = self.request("POST", "/v2.0/metrics", "admin", params={"tenant_id": tenant})
            self.assertEqual(422, answer.status_code, tenant)


class TestPolicyFile(ConfigurationTestCase):
    def conf(self, rules, name="policy_file"):
        return self.configured(f"[oslo_policy]\n{name} = {self.path_of(rules)}\n")

    def test_rules_of_the_policy_file_are_checked_at_the_start(self):
        for rules, expected in (
            ("monasca:write: '", "cannot be used"),
            ("- a list", "cannot be used"),
            ("'monasca:write': 'rule:nobody'", "monasca:write"),
            ("'monasca:wirte': 'role:x'", "monasca:wirte"),
            ("'monasca:write': true", "cannot be used"),
        ):
            self.assertIn(expected, self.refused(auth.Authorization, self.conf(rules)))
        auth.Authorization(self.conf("'monasca:write': 'role:x'"))

    def test_a_missing_policy_file_is_refused(self):
        conf = self.configured("[oslo_policy]\npolicy_file = /no/such/policy.yaml\n")
        self.assertIn("/no/such/policy.yaml", self.refused(auth.Authorization, conf))
        auth.Authorization(self.configured(""))


class TestChangedPolicyFile(ConfigurationTestCase, RulesCase):
    def setUp(self):
        super().setUp()
        self.path = self.path_of("")
        self.write('"monasca:delegate": "!"', 1000)
        conf = self.configured(f"[oslo_policy]\npolicy_file = {self.path}\n")
        self.client = self.client_of(auth.Authorization(conf))

    def write(self, rules, seconds):
        pathlib.Path(self.path).write_text(rules)
        os.utime(self.path, (seconds, seconds))

    def delegation(self):
        return self.code("GET", "/v2.0/metrics", "admin", params={"tenant_id": "t2"})

    def test_each_change_is_read_even_if_the_file_is_older_than_before(self):
        for rules, seconds, expected in (("", 3000, 200), ('"monasca:delegate": "!"', 2000, 403), ("", 4000, 200)):
            self.write(rules, seconds)
            self.assertEqual(expected, self.delegation())

    def test_while_the_file_is_missing_or_invalid_the_rules_remain(self):
        logged = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        os.rename(self.path, f"{self.path}.moved")
        self.assertEqual([403, 403], [self.delegation() for _ in range(2)])
        self.assertEqual(1, logged.output.count("the policy file cannot be used; keeping the current rules"))
        os.rename(f"{self.path}.moved", self.path)
        self.assertEqual(403, self.delegation())
        self.write('"monasca:delegate', 5000)
        self.assertEqual([403, 403], [self.delegation() for _ in range(2)])
        self.write("", 6000)
        self.assertEqual(200, self.delegation())


class TestNoAuthentication(ApiCase):
    def tenant_of(self, headers, query=""):
        self.client.simulate_post("/v2.0/metrics" + query, body=json.dumps(metric()).encode(), headers=headers)
        return json.loads(self.records()[-1].value)["meta"]["tenantId"]

    def test_a_request_has_the_tenant_that_it_names_or_the_default(self):
        self.assertEqual("noauth", self.tenant_of({}))

    def test_a_header_names_a_tenant(self):
        self.assertEqual("t7", self.tenant_of({"X-Project-Id": "t7"}))

    def test_the_query_names_a_tenant(self):
        self.assertEqual("t8", self.tenant_of({"X-Project-Id": "t7"}, "?tenant_id=t8"))

    def test_logs_accept_project_id_as_tenant_id(self):
        body = json.dumps({"logs": [{"message": "a"}]}).encode()
        headers = {"X-Project-Id": "t7", "Content-Type": "application/json"}
        self.client.simulate_post("/v2.0/logs?project_id=t8", body=body, headers=headers)
        self.assertEqual("t8", json.loads(self.records("log")[-1].value)["meta"]["tenantId"])

    def test_noauth_is_not_the_default(self):
        self.assertEqual("keystone", ApiSettings().auth_strategy)
