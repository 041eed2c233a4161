# SPDX-License-Identifier: Apache-2.0
"""Tests with tokens of a real Keystone: tenants, roles, and invalid tokens."""

import base64
import configparser
import json
import shutil
import socket
import socketserver
import tempfile
import threading
from pathlib import Path

import cramjam

from monasca_common.tests.functional.api.api_case import METRICS, NOW_MS, ApiProcess, ApiProcessCase, metric
from monasca_common.tests.functional.changed_command import command_after, set_constants
from monasca_common.tests.keystone_server import PASSWORD, KeystoneServer
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import serve
from monasca_common.tests.unit.models.write_request import up
from monasca_common.tests.waiting import PATIENCE_SECONDS

EXAMPLE = Path(__file__).parents[4] / "examples" / "api.conf"
LOGS = "/v2.0/logs"
LOG_BODY = {"logs": [{"message": "a"}]}


class Memcached(socketserver.ThreadingTCPServer):
    """A subset of memcached."""

    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.kept = {}


class MemcachedRequest(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            match line.split():
                case [b"get", key]:
                    flags, value = self.server.kept.get(key, (b"0", None))
                    if value is not None:
                        self.wfile.write(b"VALUE %s %s %d\r\n%s\r\n" % (key, flags, len(value), value))
                    self.wfile.write(b"END\r\n")
                case [b"set", key, flags, _, size]:
                    self.server.kept[key] = flags, self.rfile.read(int(size) + 2)[:-2]
                    self.wfile.write(b"STORED\r\n")
                case _:
                    self.wfile.write(b"ERROR\r\n")


class KeystoneCase(ApiProcessCase):
    """``self.served``: an API with a real Keystone, shared by the tests of a class."""

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
        keystone.user("monasca", keystone.project("service"), keystone.role("service"))
        cls.project = keystone.project("observed")
        cls.other_project = keystone.project("other")
        keystone.user("writer", cls.project, ids["monasca-user"])
        keystone.user("reader", cls.project, ids["monasca-read-only-user"])
        keystone.user("agent", cls.project, ids["monasca-agent"], ids["monitoring-delegate"])
        keystone.user("stranger", cls.other_project, ids["monasca-user"])
        cls.shared = None

    def setUp(self):
        super().setUp()
        if self.shared is None:
            silent = [*command_after((set_constants, {"monasca_common.runtime.web_server._SILENT_SECONDS": 1})), "api"]
            served = ApiProcess(self.folder, self.authenticated(), command=silent)
            self.addClassCleanup(served.kill)
            type(self).shared = served.wait_until_ready(), self.topic
        self.served, self.topic = self.shared
        self.logged_before = {(each.partition, each.offset) for each in self.log(self.topic, self.partitions)}

    def authenticated_api(self, *lines, **changes):
        """Start an API for one test; most tests share ``self.served``."""
        return self.api(text=self.authenticated(*lines, **changes))

    def authenticated(self, *lines, password=PASSWORD, memcached=None):
        """Return the documented configuration with other addresses, secrets and time-outs."""
        example = configparser.ConfigParser()
        example.read(EXAMPLE)
        changed = {
            "www_authenticate_uri": self.keystone.url,
            "auth_url": self.keystone.url,
            "password": password,
            "http_connect_timeout": "240",
            "http_request_max_retries": "0",
        }
        left_out = {"cafile"}
        if memcached is None:
            left_out |= {"memcached_servers", "memcache_secret_key", "memcache_security_strategy"}
        else:
            changed["memcached_servers"] = memcached
        values = {**example["keystone_authtoken"], **changed}
        section = [f"{name} = {value}" for name, value in values.items() if name not in left_out]
        topics = [f"logs_topic = {self.fixture.topic()}", "auth_strategy = keystone", *lines]
        return self.configuration(api=topics, more="\n".join(["[keystone_authtoken]", *section]))


@periodic("a real Keystone, which the normal run of tempest also uses")
class TestKeystone(KeystoneCase):
    def post(self, user, body, path=METRICS, project="observed"):
        token = self.keystone.token(user, project)
        return self.served.post(body, {"X-Auth-Token": token}, path)

    def tenants(self):
        """Return lines logged during this test."""
        logged = self.log(self.topic, self.partitions)
        new = [each for each in logged if (each.partition, each.offset) not in self.logged_before]
        return [json.loads(each.value)["meta"]["tenantId"] for each in new]

    def assert_unauthorized(self, answer):
        status, headers, body = answer
        self.assertEqual((401, 401), (status, body["error"]["code"]))
        self.assertIn(self.keystone.url, headers["www-authenticate"])

    def test_the_tenant_is_the_tokens_project(self):
        self.assertEqual(204, self.post("writer", metric())[0])
        self.assertEqual(204, self.post("stranger", metric(tenantId=self.project), project="other")[0])
        self.assertEqual(sorted([self.project, self.other_project]), sorted(self.tenants()))

    def test_missing_and_invalid_tokens_and_forged_headers_are_401(self):
        self.assert_unauthorized(self.served.post(metric()))
        self.assert_unauthorized(self.served.post(metric(), {"X-Auth-Token": "gAAAA-no-such-token"}))
        pretence = {"X-Identity-Status": "Confirmed", "X-Project-Id": self.project, "X-Roles": "admin"}
        self.assert_unauthorized(self.served.post(metric(), pretence))
        self.assert_unauthorized(self.served.post(metric(), {**pretence, "X-Auth-Token": "x"}))
        self.assertEqual([], self.tenants())

    # Rule 54
    def test_a_missing_role_gets_a_response_before_the_body_arrives(self):
        reader = f"X-Auth-Token: {self.keystone.token('reader', 'observed')}\r\n"
        for token in ("", "X-Auth-Token: wrong\r\n", reader):
            for length in ("Content-Length: 1000000", "Content-Length: 9999999999", "Transfer-Encoding: chunked"):
                with socket.create_connection(("127.0.0.1", self.served.port), timeout=PATIENCE_SECONDS) as client:
                    client.sendall(f"POST /v2.0/metrics HTTP/1.1\r\nHost: x\r\n{token}{length}\r\n\r\n".encode())
                    answer = client.makefile("rb").read()  # until the API ends the silent connection
                    self.assertEqual((b"401", True), (answer.split()[1], self.keystone.url.encode() in answer))

    def test_an_application_credential_is_exchanged_for_a_token_until_it_is_deleted(self):
        credentials = self.keystone.client("agent", "observed").application_credentials
        made = credentials.create("p")

        def basic(secret):
            encoded = base64.b64encode(f"{made.id}:{secret}".encode()).decode()
            return {"Authorization": f"Basic {encoded}"}

        api = self.api(text=f"{self.authenticated()}token_cache_time = 1\n")
        body = bytes(cramjam.snappy.compress_raw(up((1.5, NOW_MS))))
        prometheus = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        written = api.post(body, prometheus | basic(made.secret), "/api/v1/write")
        self.assertEqual((204, 204), (written[0], api.post(metric(), basic(made.secret))[0]))
        self.assertEqual([self.project] * 2, self.tenants())
        self.assert_unauthorized(api.post(metric(), basic("wrong")))
        credentials.delete(made.id)
        self.wait_until(lambda: api.post(metric(), basic(made.secret))[0] == 401)
        self.assertNotIn(made.secret, api.text())

    def test_a_token_without_a_project_is_refused(self):
        token = self.keystone.token("writer", None)
        self.assert_unauthorized(self.served.post(metric(), {"X-Auth-Token": token}))

    def test_a_read_only_role_cannot_write(self):
        self.assert_unauthorized(self.post("reader", metric()))
        self.assert_unauthorized(self.post("reader", b"not json"))
        token = self.keystone.token("reader", "observed")
        status = self.served.request("GET", METRICS, headers={"X-Auth-Token": token})[0]
        self.assertEqual(501, status)  # permitted, but there is no database

    def test_an_agent_may_only_post_metrics_for_any_tenant(self):
        self.assertEqual(204, self.post("agent", metric(), f"{METRICS}?tenant_id={self.other_project}")[0])
        self.assertEqual([self.other_project], self.tenants())
        self.assert_unauthorized(self.post("agent", LOG_BODY, LOGS))
        self.assertEqual(204, self.post("writer", LOG_BODY, LOGS)[0])

    def test_other_roles_may_not_name_another_tenant(self):
        status, _, body = self.post("writer", metric(), f"{METRICS}?tenant_id={self.other_project}")
        self.assertEqual((403, 403), (status, body["error"]["code"]))
        self.assertEqual([], self.tenants())

    def test_versions_and_health_require_no_token(self):
        for path in ("/", "/v2.0", "/healthcheck"):
            self.assertEqual(200, self.served.request("GET", path)[0])

    def test_an_unavailable_keystone_is_503_for_uncached_tokens(self):
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

    def test_cached_tokens_are_served_while_others_wait_for_keystone(self):
        served = self.authenticated_api("max_in_flight = 2")  # the same number of requests wait for Keystone
        known, *strangers = [self.keystone.token("writer", "observed") for _ in range(4)]
        self.assertEqual(204, served.post(metric(), {"X-Auth-Token": known})[0])
        answers = []
        threads = [
            threading.Thread(target=lambda token=token: answers.append(served.post(metric(), {"X-Auth-Token": token})))
            for token in strangers
        ]
        with self.keystone.silent():
            for thread in threads:
                thread.start()
            self.wait_until(lambda: answers, "a response")  # until one of the requests arrives
            for _ in range(3):
                self.assertEqual(204, served.post(metric(), {"X-Auth-Token": known})[0])
            self.assertEqual([503], [answer[0] for answer in answers])
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        self.assertEqual([204, 204, 503], sorted(answer[0] for answer in answers))

    def test_memcached_shares_tokens_between_apis(self):
        memcached = Memcached(("127.0.0.1", 0), MemcachedRequest)
        self.addCleanup(serve(memcached))
        address = f"127.0.0.1:{memcached.server_address[1]}"
        first, second = (self.authenticated_api(memcached=address) for _ in range(2))
        token = self.keystone.token("writer", "observed")
        self.assertEqual(204, first.post(metric(), {"X-Auth-Token": token})[0])
        with self.keystone.silent():
            self.assertEqual(204, second.post(metric(), {"X-Auth-Token": token})[0])
        self.assertTrue(memcached.kept)
        for _, value in memcached.kept.values():
            self.assertNotIn(self.project.encode(), value)  # encrypted

    def test_a_wrong_password_of_the_api_is_reported_as_wrong_settings(self):
        served = self.authenticated_api(password="wrong")
        status, _, body = served.post(metric(), {"X-Auth-Token": self.keystone.token("writer", "observed")})
        self.assertEqual(503, status)
        self.assertIn("is not configured correctly", body["error"]["message"])
        self.assertRegex(served.text(), r"ERROR .*correct \[keystone_authtoken\]: .*Unauthorized")
