# SPDX-License-Identifier: Apache-2.0
import http.client
import os
import resource
import signal
import socket
import threading
from unittest import mock

import fixtures
from gunicorn.config import Config
from oslotest import base

from monasca_common.api import connections, worker
from monasca_common.api.connections import ConnectionLimits
from monasca_common.api.http_messages import HttpRules
from monasca_common.api.limits import ALWAYS_SERVED, threads_of
from monasca_common.api.notes import ANSWER_IS_KNOWN, HEADER_ALONE
from monasca_common.api.server import Server, allowed_connections, start_line
from monasca_common.api.settings import ApiSettings, api_settings
from monasca_common.api.worker import ApiWorker
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

SECONDS = 30


class TestStartLine(ConfigurationTestCase):
    def line(self, **groups):
        conf = self.with_kafka(**groups)
        return start_line(conf, api_settings(conf), "127.0.0.1:8070")

    def test_it_names_address_topics_brokers_and_database_and_no_secret(self):
        line = self.line(database="connection = postgresql://me:hush@db/monasca", storage="driver = postgresql")
        self.assertRegex(
            line,
            r"^api \S+ started: at 127\.0\.0\.1:8070; workers 1; authentication keystone; "
            r"writes metrics, log, monevents; "
            r"to brokers kafka\.example\.org:9092; reads database postgresql://db/monasca$",
        )

    def test_without_a_database_it_names_none(self):
        self.assertNotIn("database", self.line())

    def test_a_database_that_is_only_written_is_not_named(self):
        self.assertNotIn("database", self.line(influxdb="ip_address = influx.example.org"))


class Application:
    """What a worker is given by `Server`; posts stay with their threads until `open`."""

    settings = ApiSettings(max_in_flight=2)
    connection_limits = ConnectionLimits(60, 60, 60, 60, connections=1000, waiting_bytes=1_000_000)
    http_rules = HttpRules(1_000_000)

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.refusals = []
        self.looked_at = []

    def refused(self, *refused):
        self.refusals.append(refused)
        return "req-1"

    def __call__(self, environ, start_response):
        if HEADER_ALONE in environ:
            self.looked_at.append(environ["HTTP_X_AUTH_TOKEN"])
            if self.looked_at[-1] == "broken":
                raise KeyError("broken")
            if self.looked_at[-1] == "wrong":
                environ[ANSWER_IS_KNOWN] = True
        if environ["REQUEST_METHOD"] == "POST":
            self.entered.release()
            self.opened.wait(SECONDS)
        start_response("200 OK", [])
        return [b"x"]


class TestWorker(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.application = Application()
        self.addCleanup(self.application.opened.set)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.addCleanup(self.listener.close)
        self.worker = ApiWorker(1, os.getppid(), [self.listener], self.application, 30, Config(), None)
        self.worker.wsgi = self.application
        self.addCleanup(self.worker.tmp.close)

    def started(self):
        thread = threading.Thread(target=self.worker.run, daemon=True)
        thread.start()
        self.addCleanup(thread.join, SECONDS)
        self.addCleanup(self.worker.handle_quit, signal.SIGINT, None)
        return thread

    def request(self, method, path):
        client = http.client.HTTPConnection(*self.listener.getsockname(), timeout=SECONDS)
        self.addCleanup(client.close)
        client.request(method, path)
        return client

    # Rule 50
    def test_health_is_answered_while_requests_wait_for_all_other_threads(self):
        self.started()
        posts = [self.request("POST", "/v2.0/metrics") for _ in range(50)]
        for _ in range(threads_of(self.application.settings)):
            self.assertTrue(self.application.entered.acquire(timeout=SECONDS))
        for path in ALWAYS_SERVED:
            self.assertEqual(200, self.request("GET", path or "/").getresponse().status)
        self.application.opened.set()
        self.assertEqual([200] * 50, [client.getresponse().status for client in posts])

    def test_what_is_no_request_is_answered_with_an_id_and_noted(self):
        self.started()
        response = self.request("FROB", "/").getresponse()
        self.assertEqual((400, "req-1"), (response.status, response.headers["X-Openstack-Request-Id"]))
        self.assertEqual([("127.0.0.1", 400, "bad_request")], self.application.refusals)

    def test_a_wrong_token_is_answered_although_its_body_is_slow_and_others_wait_for_theirs(self):
        self.useFixture(fixtures.MockPatchObject(connections, "_SLOW_BODY_SECONDS", 0.0))
        self.started()
        clients = []
        for token in (b"good", b"broken", b"wrong"):  # the only thread looks at them one after the other
            client = socket.create_connection(self.listener.getsockname(), timeout=SECONDS)
            self.addCleanup(client.close)
            client.sendall(b"PUT / HTTP/1.1\r\nX-Auth-Token: %b\r\nContent-Length: 1\r\n\r\n" % token)
            clients.append(client)
        answer = clients.pop().recv(1000)
        self.assertEqual((b"200", True), (answer.split()[1], b"\r\nConnection: close\r\n" in answer))
        for client in clients:
            client.sendall(b"a")
            self.assertIn(b"\r\nConnection: keep-alive\r\n", client.recv(1000))
        self.assertEqual(["good", "broken", "wrong"], self.application.looked_at)  # each once

    def test_a_stop_answers_what_threads_have_and_ends(self):
        thread = self.started()
        client = self.request("POST", "/v2.0/metrics")
        self.assertTrue(self.application.entered.acquire(timeout=SECONDS))
        self.worker.handle_exit(signal.SIGTERM, None)
        self.application.opened.set()
        response = client.getresponse()
        self.assertEqual((200, b"x"), (response.status, response.read()))
        client.close()
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive())

    def test_ctrl_c_waits_for_no_request(self):
        thread = self.started()
        client = self.request("POST", "/v2.0/metrics")
        self.assertTrue(self.application.entered.acquire(timeout=SECONDS))
        for _ in range(2):
            self.worker.handle_quit(signal.SIGQUIT, None)
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive())
        self.assertRaises((http.client.RemoteDisconnected, ConnectionResetError), client.getresponse)

    def test_it_ends_when_its_parent_has(self):
        self.worker.ppid = -1
        thread = self.started()
        thread.join(SECONDS)
        self.assertFalse(thread.is_alive())


class TestThreads(base.BaseTestCase):
    def test_what_can_wait_is_taken_only_while_little_else_does(self):
        threads = worker._Threads(0, "api-none", lambda *_: None)
        taken = [threads.offer(None, None) for _ in range(50)]
        self.assertEqual([True] * 16, taken[:16])
        self.assertNotIn(True, taken[16:])


class TestRules(ConfigurationTestCase):
    def rules(self, **settings):
        return Server(None, ApiSettings(**settings)).http_rules

    def test_without_a_token_no_answer_depends_on_a_body(self):
        wanted = self.rules(auth_strategy="keystone").body_wanted
        self.assertEqual([False, True], [wanted({}), wanted({"HTTP_X_AUTH_TOKEN": "a"})])
        self.assertTrue(self.rules(auth_strategy="noauth").body_wanted({}))

    def test_a_proxy_on_this_host_is_trusted_unless_others_are_named(self):
        self.assertEqual([True, False], list(map(self.rules().is_trusted_proxy, ("127.0.0.1", "10.0.0.7"))))
        with mock.patch.object(Config, "forwarded_allow_ips", ["10.0.0.0/24", "::1"], create=True):
            trusted = list(map(self.rules().is_trusted_proxy, ("127.0.0.1", "10.0.0.7", "::1")))
        self.assertEqual([False, True, True], trusted)


class TestOpenFiles(base.BaseTestCase):
    """``limits``: soft and hard, of a system in which the soft one can be raised to the hard one."""

    def allowed(self, wanted, *limits):
        self.set = limits
        with (
            mock.patch.object(resource, "getrlimit", return_value=limits),
            mock.patch.object(resource, "setrlimit", side_effect=lambda _which, given: setattr(self, "set", given)),
        ):
            return allowed_connections(wanted)

    def test_the_limit_is_raised_as_far_as_it_is_needed(self):
        self.assertEqual((4096, (4352, 20_000)), (self.allowed(4096, 1024, 20_000), self.set))
        self.assertEqual((4096, (4352, -1)), (self.allowed(4096, 1024, resource.RLIM_INFINITY), self.set))
        self.assertEqual((4096, (9000, 9000)), (self.allowed(4096, 9000, 9000), self.set))
        self.assertEqual((4096, (-1, -1)), (self.allowed(4096, -1, -1), self.set))

    def test_where_it_cannot_be_raised_there_are_fewer_connections_and_a_line_that_says_so(self):
        with self.assertLogs("monasca_common.api.server", "WARNING") as logs:
            self.assertEqual((744, (1000, 1000)), (self.allowed(4096, 500, 1000), self.set))
        for part in ("1000 open files", "744 connections", "LimitNOFILE", "4352"):
            self.assertIn(part, logs.output[0])
