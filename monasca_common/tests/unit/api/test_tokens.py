# SPDX-License-Identifier: Apache-2.0
"""Tests of a missing, silent or wrong Keystone; functional tests use a real one."""

import base64
import io
import json
import socket
import threading

import fixtures
import requests
from falcon import testing
from keystoneauth1 import exceptions
from keystoneauth1.fixture import V3Token
from keystonemiddleware import auth_token
from oslotest import base

from monasca_common.api import tokens
from monasca_common.api.app import make_app
from monasca_common.api.settings import ApiSettings
from monasca_common.kafka import ProducerPool
from monasca_common.tests.served import http_server, respond, serve
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

SETTINGS = """
auth_type = password
username = monasca
password = a-secret
user_domain_name = Default
project_name = service
project_domain_name = Default
"""


def check(conf):
    tokens.authenticated(lambda *_: [], conf)


class TestSettings(ConfigurationTestCase):
    def conf(self, *lines, more=""):
        return self.configured("\n".join(["[keystone_authtoken]", *lines, more]) + "\n")

    def faults(self, *lines, more=""):
        return self.refused(check, self.conf(*lines, more=more))

    def test_all_missing_options_are_named(self):
        self.assertEqual(
            "auth_strategy in group [api] is keystone, but options are missing in [keystone_authtoken]: set "
            "auth_type, auth_url, username or user_id, password, user_domain_name or user_domain_id, project_name or "
            "project_id, project_domain_name or project_domain_id. For a trial without Keystone, set auth_strategy = "
            "noauth",
            self.faults(),
        )

    def test_only_missing_options_are_named(self):
        self.assertIn("set auth_url. For", self.faults(SETTINGS))
        self.assertIn("set auth_url, password. For", self.faults(SETTINGS.replace("password = a-secret", "")))

    def test_ids_require_no_domains(self):
        lines = ("auth_type = password", "auth_url = http://k/v3", "user_id = u", "project_id = p")
        self.assertIn("set password. For", self.faults(*lines))
        check(self.conf(*lines, "password = a-secret"))

    def test_a_separate_auth_section_is_checked(self):
        self.assertIn("[other]", self.faults("auth_section = other", more="[other]\nauth_type = password"))

    def test_other_auth_types_have_their_own_required_options(self):
        lines = ("auth_type = v3applicationcredential", "auth_url = http://k/v3", "application_credential_id = c")
        self.assertIn("You must provide an auth secret", self.faults(*lines))
        check(self.conf(*lines, "application_credential_secret = a-secret"))

    def test_invalid_options_are_named(self):
        url = "auth_url = http://k/v3"
        for line, name in (
            ("cafile = /no/such/file", "cafile"),
            ("memcache_security_strategy = MAC", "memcache_secret_key"),
            ("http_connect_timeout = soon", "http_connect_timeout"),
        ):
            self.assertIn(name, self.faults(SETTINGS, url, line))
        self.assertIn("passwort", self.faults(SETTINGS.replace("= password", "= passwort"), url))

    def test_a_missing_memcached_module_is_reported_with_its_extra(self):
        self.addCleanup(setattr, tokens.importlib.util, "find_spec", tokens.importlib.util.find_spec)
        tokens.importlib.util.find_spec = lambda _: None
        message = self.faults(SETTINGS, "auth_url = http://k/v3", "memcached_servers = localhost:11211")
        self.assertIn("monasca-common[memcached]", message)

    def test_time_out_and_tries_are_limited_by_default(self):
        conf = self.conf(SETTINGS, "auth_url = http://k/v3")
        check(conf)
        values = conf.keystone_authtoken
        self.assertEqual((5, 1), (values.http_connect_timeout, values.http_request_max_retries))


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class TestTokenCache(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = Clock()
        self.cache = self.limited(64 * 1024 * 1024)

    def limited(self, size_bytes):
        self.patch(tokens, "_MAX_CACHED_BYTES", size_bytes)
        return tokens.TokenCache(300, self.clock)

    def test_a_token_is_cached_until_it_expires(self):
        self.cache.set("a", {"token": {}})
        self.clock.now += 299
        self.assertEqual({"token": {}}, self.cache.get("a"))
        self.clock.now += 2
        self.assertIsNone(self.cache.get("a"))

    def test_the_least_recently_used_tokens_are_removed_above_the_size_limit(self):
        self.cache = self.limited(10_000)
        self.cache.set("in use", {})
        for number in range(100):
            self.cache.set(f"{number}", {"catalog": "x" * 1000})
            self.assertEqual({}, self.cache.get("in use"))
        known = [number for number in range(100) if self.cache.get(f"{number}") is not None]
        self.assertIn(len(known), range(5, 10))
        self.assertEqual(list(range(100))[-len(known) :], known)

    def test_the_number_of_small_tokens_is_also_limited(self):
        self.cache = self.limited(10_000)
        for number in range(1000):
            self.cache.set(f"{number}", {})
        self.assertLess(sum(self.cache.get(f"{number}") is not None for number in range(1000)), 100)

    def test_a_replaced_token_is_counted_once(self):
        self.cache = self.limited(10_000)
        self.cache.set("other", {})
        for _ in range(100):
            self.cache.set("a", {"catalog": "x" * 1000})
        self.assertEqual({}, self.cache.get("other"))

    def test_a_token_larger_than_the_cache_is_not_cached(self):
        self.cache = self.limited(10_000)
        self.cache.set("large", {"catalog": "x" * 10_000})
        self.assertIsNone(self.cache.get("large"))
        self.cache.set("a", {})
        self.assertEqual({}, self.cache.get("a"))

    def test_expired_tokens_are_removed(self):
        for number in range(100):
            self.cache.set(f"{number}", {"catalog": "x" * 1000})
        self.clock.now += 301
        self.cache.set("a", {})
        self.assertEqual(1, len(self.cache._texts))

    def test_a_disabled_cache_is_empty(self):
        cache = tokens.TokenCache(-1, self.clock)
        cache.set("a", {})
        self.assertIsNone(cache.get("a"))


class Server:
    """Replaces keystonemiddleware's: answers, raises, or waits until `opened`."""

    def __init__(self, error=None):
        self.error = error
        self.entered, self.opened = threading.Semaphore(0), threading.Event()
        self.invalidated = False

    def verify_token(self, token, *, allow_expired):
        self.entered.release()
        if self.error is not None:
            raise self.error
        if token == "slow":
            self.opened.wait(50)
        return {"token": token}

    def invalidate(self):
        self.invalidated = True


class TestValidations(ConfigurationTestCase):
    def tokens(self, server, max_waiting=2):
        self.observed = []
        conf = self.configured(f"[keystone_authtoken]\n{SETTINGS}\nauth_url = http://k/v3\n")
        observe = lambda outcome, _seconds: self.observed.append(outcome)  # noqa: E731
        made = tokens.authenticated(lambda *_: [], conf, max_waiting, observe)
        made._identity_server = server
        return made

    def outcome(self, error):
        undecided = self.assertRaises(tokens.Undecided, self.tokens(Server(error)).fetch_token, "t")
        self.assertEqual([undecided.outcome], self.observed)
        return str(undecided.outcome)

    def test_a_validation_beyond_the_limit_is_refused_immediately(self):
        server = Server()
        validations = self.tokens(server)
        self.addCleanup(server.opened.set)
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(validations.fetch_token("slow")), daemon=True)
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            self.assertTrue(server.entered.acquire(timeout=50))
        self.assertRaises(tokens.Undecided, validations.fetch_token, "quick")
        server.opened.set()
        for thread in threads:
            thread.join(50)
        self.assertEqual([{"token": "slow"}] * 2, answers)
        self.assertEqual({"token": "quick"}, validations.fetch_token("quick"))
        self.assertEqual(["refused", "valid", "valid", "valid"], self.observed)

    def test_a_failed_validation_releases_its_slot(self):
        validations = self.tokens(Server(auth_token.InvalidToken()), 1)
        for _ in range(3):
            self.assertRaises(auth_token.InvalidToken, validations.fetch_token, "t")
        self.assertEqual(["invalid"] * 3, self.observed)

    def test_an_outage_is_distinguished_from_wrong_settings(self):
        for silence in (
            exceptions.ConnectFailure("refused"),
            exceptions.ConnectTimeout("late"),
            exceptions.InternalServerError("broken"),
            exceptions.HttpError("slower", http_status=429),
        ):
            self.assertEqual("silent", self.outcome(silence))
        for fault in (
            exceptions.Unauthorized("wrong password"),
            exceptions.Forbidden("no role"),
            exceptions.EndpointNotFound("no such region"),
            exceptions.SSLError("not trusted"),
            exceptions.DiscoveryFailure("nothing there"),
            KeyError("token"),
        ):
            self.assertEqual("misconfigured", self.outcome(fault))

    def test_the_cause_of_an_error_determines_the_outcome(self):
        def error(cause):
            try:
                raise auth_token.ServiceError("failed") from cause
            except auth_token.ServiceError as raised:
                return raised

        self.assertEqual("misconfigured", self.outcome(error(exceptions.Unauthorized())))
        self.assertEqual("silent", self.outcome(error(exceptions.ServiceUnavailable())))

    def test_a_missing_endpoint_is_discovered_again(self):
        server = Server(exceptions.EndpointNotFound())
        self.assertRaises(tokens.Undecided, self.tokens(server).fetch_token, "t")
        self.assertTrue(server.invalidated)


class TestDeadline(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        self.deadline = tokens._KeystoneDeadline(0.05)
        self.session = requests.Session()
        self.session.mount("http://", self.deadline)

    def test_all_requests_of_a_validation_have_one_deadline(self):
        self.deadline.begin()
        either = (requests.exceptions.RequestException, TimeoutError)
        self.assertRaises(either, self.session.get, self.url, timeout=60)
        # keystoneauth does not repeat the request
        self.assertRaises(TimeoutError, self.session.get, self.url, timeout=60)


class Unread(io.RawIOBase):
    def read(self, size=-1):
        raise AssertionError("the body is read")


class TestBeforeTheBody(ConfigurationTestCase):
    """Refusals that do not depend on the body precede reading it."""

    def setUp(self):
        super().setUp()
        self.asked = []
        fetched = lambda *given, **named: self.fetch_token(*given, **named)  # noqa: E731
        self.useFixture(fixtures.MonkeyPatch("monasca_common.api.tokens.Tokens.fetch_token", fetched))
        conf = self.configured(f"[keystone_authtoken]\n{SETTINGS}\nauth_url = http://k/v3\n")
        self.producer = object()
        settings = ApiSettings(access_log="off")
        self.app = make_app(settings, ProducerPool(lambda _: self.producer), conf=conf)

    def fetch_token(self, _middleware, token, **_named):
        self.asked.append(token)
        if token == "wrong":
            raise auth_token.InvalidToken
        made = V3Token()
        made.set_project_scope()
        made.add_role(name=token)
        return made

    def refusal(self, token, path="/v2.0/metrics", query=""):
        environ = testing.create_environ(path, query, method="POST", headers={"X-Auth-Token": token})
        statuses = []
        self.app({**environ, "wsgi.input": Unread()}, lambda status, *_: statuses.append(status[:3]))
        return statuses[0]

    # Rule 54
    def test_an_invalid_token_is_401_after_one_request_to_keystone(self):
        self.assertEqual(("401", ["wrong"]), (self.refusal("wrong"), self.asked))

    def test_a_missing_role_is_401_and_another_tenant_403(self):
        self.assertEqual("401", self.refusal("monasca-read-only-user"))
        self.assertEqual("401", self.refusal("monasca-agent", "/v2.0/logs"))
        self.assertEqual("403", self.refusal("monasca-agent", query="tenant_id=another"))

    def test_an_unknown_path_is_404(self):
        self.assertEqual("404", self.refusal("admin", "/v2.0/nothing"))

    def test_a_trusted_tenant_needs_no_token(self):
        conf = self.configured(f"[keystone_authtoken]\n{SETTINGS}\nauth_url = http://k/v3\n")
        headers = {"X-Scope-OrgID": "t9", "X-Identity-Status": "Confirmed", "X-Roles": "admin", "X-Project-Id": "t9"}
        for trusted, path, status in (
            (True, "/api/v1/write", 415), (False, "/api/v1/write", 401), (True, "/v2.0/metrics", 401)
        ):  # fmt: skip
            settings = ApiSettings(access_log="off", trust_scope_header=trusted)
            app = make_app(settings, ProducerPool(lambda _: self.producer), conf=conf)
            self.assertEqual(status, testing.TestClient(app).simulate_post(path, headers=headers).status_code)

    def test_each_outcome_of_a_validation_is_served_from_0(self):
        text = testing.TestClient(self.app).simulate_get("/metrics").text
        for outcome in tokens.ValidationOutcome:
            self.assertIn(f'monasca_api_token_validation_seconds_count{{outcome="{outcome}"}} 0.0', text)


class TestCredentials(ConfigurationTestCase):
    """Application credentials as HTTP Basic. ``self.secrets``: the valid ones."""

    def setUp(self):
        super().setUp()
        self.logged = self.useFixture(fixtures.FakeLogger())
        self.exchanged, self.revoked, self.secrets, self.error = [], set(), {"id:a-secret"}, None
        get_token = "keystoneauth1.identity.v3.ApplicationCredential.get_token"
        self.useFixture(fixtures.MonkeyPatch(get_token, lambda *given: self.exchange(*given)))
        conf = self.configured(f"[keystone_authtoken]\n{SETTINGS}\nauth_url = http://k/v3\n")
        app = tokens.authenticated(self.app, conf, 4)
        self.www_authenticate_uri = "http://k"
        app._identity_server = self
        self.client = testing.TestClient(lambda environ, start_response: app(environ, start_response))

    def app(self, environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [environ["HTTP_X_PROJECT_ID"].encode()]

    def exchange(self, plugin, _session):
        self.assertEqual("http://k/v3/auth/tokens", plugin.token_url)
        ((method,),) = [plugin.auth_methods]
        self.exchanged.append(f"{method.application_credential_id}:{method.application_credential_secret}")
        if self.error is not None:
            raise self.error
        if self.exchanged[-1] not in self.secrets:
            raise exceptions.Unauthorized("a-wrong-secret")
        return f"token-{len(self.exchanged)}"

    def verify_token(self, token, *, allow_expired):
        if token in self.revoked or not token.startswith("token-"):
            raise auth_token.InvalidToken
        made = V3Token()
        made.set_project_scope(id="the-project")
        return made

    def request(self, credential="id:a-secret", **headers):
        encoded = base64.b64encode(credential.encode()).decode()
        return self.client.simulate_post("/api/v1/write", headers={"Authorization": f"Basic {encoded}", **headers})

    def test_a_credential_is_exchanged_once(self):
        for _ in range(3):
            self.assertEqual((200, "the-project"), (self.request().status_code, self.request().text))
        self.assertEqual(["id:a-secret"], self.exchanged)

    def test_after_its_token_was_revoked_a_credential_is_exchanged_again(self):
        conf_cache = "monasca_common.api.tokens.TokenCache.get"
        self.useFixture(fixtures.MonkeyPatch(conf_cache, lambda *_: None))  # as if token_cache_time had passed
        self.request()
        self.revoked.add("token-1")
        self.assertEqual(200, self.request().status_code)
        self.revoked.update(("token-2", "token-3"))
        self.assertEqual(401, self.request().status_code)
        self.assertEqual(3, len(self.exchanged))

    def test_a_wrong_secret_is_401_and_is_not_logged(self):
        self.assertEqual(401, self.request("id:a-wrong-secret").status_code)
        self.assertEqual(401, self.request("no colon").status_code)
        self.assertNotIn("a-wrong-secret", self.logged.output)
        self.request()
        self.assertNotIn("a-secret", self.logged.output)

    def test_a_deleted_credential_is_401(self):
        self.error = exceptions.NotFound("no application credential", method="POST")
        self.assertEqual(401, self.request().status_code)

    def test_without_a_response_of_keystone_the_status_is_503(self):
        self.error = exceptions.ConnectFailure("refused")
        answer = self.request()
        self.assertEqual((503, "1"), (answer.status_code, answer.headers["Retry-After"]))

    def test_a_token_is_used_instead_of_a_credential(self):
        self.assertEqual(200, self.request(**{"X-Auth-Token": "token-x"}).status_code)
        self.assertEqual([], self.exchanged)

    def test_other_headers_are_401(self):
        for text in ("Basic", "Basic !", "Bearer token-1", "basic " + "x" * 7):
            answer = self.client.simulate_get("/", headers={"Authorization": text})
            self.assertEqual(401, answer.status_code, text)
        self.assertEqual([], self.exchanged)


class TestWrongServers(ConfigurationTestCase):
    """The server at auth_url is not Keystone, or is not healthy."""

    def setUp(self):
        super().setUp()
        self.server = http_server(lambda handler: respond(handler, *self.response))
        self.addCleanup(serve(self.server))

    def answer(self, status, body, path):
        self.response = status, body
        url = f"auth_url = http://127.0.0.1:{self.server.server_port}{path}"
        conf = self.configured(f"[keystone_authtoken]\n{SETTINGS}\n{url}\nhttp_request_max_retries = 0\n")
        app = tokens.authenticated(lambda *_: [], conf, 4)
        client = testing.TestClient(lambda environ, start_response: app(environ, start_response))
        answer = client.simulate_get("/v2.0/metrics", headers={"X-Auth-Token": "t"})
        self.assertEqual(
            (503, 503, "1"), (answer.status_code, answer.json["error"]["code"], answer.headers["Retry-After"])
        )
        return answer.json["error"]["message"]

    def test_a_web_page_a_wrong_path_and_a_wrong_password_are_wrong_settings(self):
        refused = json.dumps({"error": {"code": 401, "message": "no", "title": "Unauthorized"}}).encode()
        for status, body in ((200, b"<html></html>"), (200, b"{}"), (404, b"nothing here"), (401, refused)):
            for path in ("", "/v3"):
                self.assertIn("is not configured correctly", self.answer(status, body, path), (status, body, path))

    def test_a_server_error_of_keystone_is_an_outage(self):
        for path in ("", "/v3"):
            self.assertIn("does not respond", self.answer(503, b"", path), path)
