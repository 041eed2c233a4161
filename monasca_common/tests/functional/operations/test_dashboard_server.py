# SPDX-License-Identifier: Apache-2.0
"""The dashboard as a process without Kafka: TLS, logins, and its end."""

import http.client
import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import fixtures
import psutil
from keystoneauth1.fixture import V3Token
from oslotest import base

from monasca_common.devbroker import certificates
from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.functional.processes import start_process
from monasca_common.tests.periodic import periodic
from monasca_common.tests.served import body_of, http_server, respond, serve
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting, wait_until_ready
from monasca_common.tests.web import fetch

PASSWORD = "correct horse battery"
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class KeystoneWithUsers(fixtures.Fixture):
    """Serves requests for tokens like Keystone: ada is an admin, and bob can only read. ``asked``: the requests."""

    def _setUp(self):
        self.asked = []
        server = http_server(self._respond)
        self.url = f"http://127.0.0.1:{server.server_port}/v3"
        self.addCleanup(serve(server))

    def _respond(self, handler):
        status, body, headers = self._answer(body_of(handler)) if handler.command == "POST" else self._version()
        respond(handler, status, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})

    def _version(self):
        version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": self.url}]}
        return 200, {"version": version}, {}

    def _answer(self, body):
        asked = json.loads(body)
        user = asked["auth"]["identity"]["password"]["user"]
        self.asked.append((user["name"], asked["auth"]["scope"]["project"]["name"]))
        if user["password"] != PASSWORD:
            return 401, {"error": {"message": "no", "code": 401}}, {}
        token = V3Token(user_name=user["name"])
        token.set_project_scope()
        token.add_role(name="admin" if user["name"] == "ada" else "monasca-read-only-user")
        return 201, token, {"X-Subject-Token": f"token-of-{user['name']}"}


class TestDashboardServer(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.tls = None
        self.port, self.status_port = free_ports(2)

    def command(self, *words, given=""):
        command = [sys.executable, "-m", "monasca_common.cli.main", "dashboard", *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return done.returncode, done.stdout, done.stderr

    def configuration(self, **options):
        lines = "".join(f"{name} = {value}\n" for name, value in {"port": self.port, **options}.items())
        path = self.folder / "dashboard.conf"
        kafka = "[kafka]\nbootstrap_servers = 127.0.0.1:1\n[monitoring]\ndurability_check = off\n"
        path.write_text(f"{kafka}[dashboard]\ninterval_seconds = 1\n{lines}")
        return str(path)

    def start(self, **options):
        log = self.folder / "log"
        command = [sys.executable, "-m", "monasca_common.cli.main", "dashboard"]
        process = start_process(self, [*command, "--config-file", self.configuration(**options)], log)
        wait_until_ready(lambda: self.ask("GET", "/healthcheck")[0] == 200, process.poll, log)
        return process, log

    def ask(self, method, path, fields=None, cookies=""):
        """Return the status, the headers and the text."""
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        more = {"context": self.tls} if self.tls else {}
        connection = kind("127.0.0.1", self.port, timeout=PATIENCE_SECONDS, **more)
        try:
            headers = {**(_FORM if fields is not None else {}), **({"Cookie": cookies} if cookies else {})}
            connection.request(method, path, urlencode(fields) if fields is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def probe(self, path):
        """Query the status port, which has neither TLS nor a login."""
        return fetch(f"http://127.0.0.1:{self.status_port}{path}")

    def log_in(self, user, password, **fields):
        return self.ask("POST", "/login", {"user": user, "password": password, "then": "/", **fields})

    def page_of(self, headers):
        return self.ask("GET", "/", cookies=headers["Set-Cookie"].partition(";")[0])

    def test_a_user_of_the_password_file_logs_in_over_tls_and_a_stop_ends_with_status_0(self):
        certificates.issue(self.folder, [])
        users = self.folder / "users"
        status, line, error = self.command("password", "--user", "ada", given=f"{PASSWORD}\n")
        self.assertEqual((0, ""), (status, error))
        users.write_text(line)
        self.tls = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        pem = self.folder / "broker.pem"
        process, log = self.start(
            login="file", password_file=users, tls_certificate=pem, tls_key=pem, status_port=self.status_port
        )
        self.assertEqual(303, self.ask("GET", "/")[0])
        self.assertEqual(401, self.log_in("ada", "wrong")[0])
        status, headers, _ = self.log_in("ada", PASSWORD)
        self.assertEqual(303, status)
        cookie = headers["Set-Cookie"]
        self.assertTrue(cookie.startswith("__Host-monasca-session="))
        self.assertTrue({"Secure", "HttpOnly", "SameSite=Strict"} <= set(cookie.split("; ")), cookie)
        self.wait_until(lambda: "not reachable since" in self.page_of(headers)[2])  # Kafka is missing
        self.assertEqual(200, self.probe("/healthz")[0])
        self.wait_until(lambda: self.probe("/healthcheck")[0] == 200)  # all figures were read
        self.assertIn("failures", self.probe("/healthcheck")[1])
        self.assertIn('monasca_service_live{service="dashboard"} 1.0', self.probe("/metrics")[1])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(PATIENCE_SECONDS), log.read_text())
        self.assertNotIn(PASSWORD, log.read_text())

    def test_another_worker_serves_after_a_crash_and_users_log_in_again(self):
        users = self.folder / "users"
        users.write_text(self.command("password", "--user", "ada", given=f"{PASSWORD}\n")[1])
        process, log = self.start(login="file", password_file=users)
        _, headers, _ = self.log_in("ada", PASSWORD)
        self.assertEqual(200, self.page_of(headers)[0], log.read_text())
        (worker,) = psutil.Process(process.pid).children()

        worker.kill()

        def answers_by_another_worker():
            try:
                return worker not in psutil.Process(process.pid).children() and self.page_of(headers)[0] == 303
            except OSError:
                return False

        self.wait_until(answers_by_another_worker, log.read_text)
        _, headers, _ = self.log_in("ada", PASSWORD)
        self.assertEqual(200, self.page_of(headers)[0], log.read_text())

    def test_keystone_authenticates_users_and_the_rules_decide_on_access(self):
        keystone = self.useFixture(KeystoneWithUsers())
        self.start(login="keystone", keystone_url=keystone.url)
        self.assertEqual(401, self.log_in("ada", "wrong", project="p1")[0])
        self.assertEqual(401, self.log_in("bob", PASSWORD, project="p1")[0])
        status, headers, _ = self.log_in("ada", PASSWORD, project="p1")
        self.assertEqual((303, ("ada", "p1")), (status, keystone.asked[-1]))
        status, _, text = self.page_of(headers)
        self.assertEqual((200, True), (status, "ada" in text))
        self.assertNotIn("token-of-ada", text)

    @periodic("starts a server for each setting")
    def test_an_unsafe_configuration_does_not_start(self):
        for options, named in (
            ({"login": "none", "host": "0.0.0.0"}, "login"),
            ({"login": "keystone"}, "keystone_url"),
            ({"login": "file", "password_file": self.configuration()}, "line 1 of"),
        ):
            status, _, error = self.command("--config-file", self.configuration(**options))
            self.assertEqual(1, status)
            self.assertIn(named, error)

    def test_a_password_that_is_too_short_is_refused(self):
        status, out, error = self.command("password", "--user", "ada", given="short\n")
        self.assertEqual((1, ""), (status, out))
        self.assertIn("12 characters", error)
