# SPDX-License-Identifier: Apache-2.0
import errno
import resource
import signal
import socket
from types import SimpleNamespace
from unittest import mock

import fixtures
from gunicorn.config import Config
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from oslotest import base

from monasca_common.runtime import web_server
from monasca_common.runtime.web_server import WebServer, WebServerLog


class TestOptions(base.BaseTestCase):
    def request(self, *headers, target="/"):
        cfg = WebServer("test", "127.0.0.1", 0, threads=4, stop_seconds=20.4).cfg
        head = "\r\n".join([f"GET {target} HTTP/1.1", "Host: x", *headers, "", ""]).encode()
        return Request(cfg, IterUnreader([head]), ("127.0.0.1", 1))

    def test_an_ipv6_address_is_in_brackets_and_timeouts_derive_from_the_stop_timeout(self):
        cfg = WebServer("test", "::1", 8070, threads=4, stop_seconds=40.4).cfg
        self.assertEqual((["[::1]:8070"], 4, 40, 80), (cfg.bind, cfg.threads, cfg.graceful_timeout, cfg.timeout))

    def test_a_worker_has_time_to_close_before_the_parent_kills_it(self):
        cfg = WebServer("test", "127.0.0.1", 0, threads=4, stop_seconds=20, close_seconds=7).cfg
        parent_seconds = cfg.graceful_timeout
        cfg.post_fork(None, SimpleNamespace(cfg=cfg))
        self.assertEqual((20, 13), (parent_seconds, cfg.graceful_timeout))

    def test_the_parent_keeps_its_signal_handlers_when_it_cleans_up_after_a_worker(self):
        cfg = WebServer("test", "127.0.0.1", 0, threads=4, stop_seconds=20).cfg
        before = signal.getsignal(signal.SIGTERM)
        cfg.worker_exit(None, SimpleNamespace(pid=0))
        self.assertEqual(before, signal.getsignal(signal.SIGTERM))

    def test_only_one_header_of_a_proxy_sets_the_scheme(self):
        self.assertEqual("https", self.request("X-Forwarded-Proto: https").scheme)
        self.assertEqual("http", self.request("X-Forwarded-Ssl: on", "X-Forwarded-Protocol: ssl").scheme)

    def test_a_header_does_not_change_the_path(self):
        names = [name for name, _ in self.request("SCRIPT_NAME: /elsewhere", "PATH_INFO: /x").headers]
        self.assertEqual(["HOST"], names)

    def test_a_long_token_is_accepted(self):
        token = "t" * 16_000
        self.assertIn(("X-AUTH-TOKEN", token), self.request(f"X-Auth-Token: {token}").headers)

    def test_a_long_url_is_accepted(self):
        target = f"/?{'n' * 8_000}"
        self.assertEqual(target, self.request(target=target).uri)


class TestSilence(base.BaseTestCase):
    def test_reading_from_a_silent_client_ends(self):
        self.useFixture(fixtures.MockPatchObject(web_server, "_SILENT_SECONDS", 1))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            web_server._bound_silence(listener)
            with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
                accepted.settimeout(None)
                self.assertRaises(BlockingIOError, accepted.recv, 1)

    def test_an_error_is_logged_but_a_silent_client_is_not(self):
        log = WebServerLog(Config())
        faults = ValueError(), PermissionError(), OSError(errno.EMFILE, "Too many open files")
        with self.assertLogs("gunicorn.error", "ERROR") as logs:
            for error in (BlockingIOError(), BrokenPipeError(), TimeoutError(), *faults):
                try:
                    raise error
                except Exception:
                    log.exception("%s", type(error).__name__)
        self.assertEqual(["ValueError", "PermissionError", "OSError"], [record.getMessage() for record in logs.records])

    def test_the_death_of_a_worker_is_logged_but_requests_are_not(self):
        with self.assertLogs("gunicorn.error", "WARNING") as logs:
            log = WebServerLog(WebServer("test", "127.0.0.1", 0, threads=4, stop_seconds=20).cfg)
            log.warning("Invalid request from ip=127.0.0.1: Invalid Method 'x'")
            log.warning("Worker (pid:%s) was sent %s!", 7, "SIGSEGV")
        self.assertEqual(["Worker (pid:7) was sent SIGSEGV!"], [record.getMessage() for record in logs.records])


class TestOpenFiles(base.BaseTestCase):
    def test_the_limit_is_raised_as_far_as_permitted(self):
        server = WebServer("test", "127.0.0.1", 0, threads=100, stop_seconds=20)
        with (
            mock.patch.object(resource, "getrlimit", return_value=(1024, 20_000)),
            mock.patch.object(resource, "setrlimit") as set_limit,
        ):
            server.cfg.when_ready(SimpleNamespace(LISTENERS=[]))
        self.assertEqual((20_000, 20_000), set_limit.call_args.args[1])
        self.assertEqual(1124, server.cfg.worker_connections)
