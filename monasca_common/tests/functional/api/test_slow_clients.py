# SPDX-License-Identifier: Apache-2.0
"""Slow, silent and excessive clients of an API behind nginx do not affect others."""

import contextlib
import itertools
import json
import resource
import selectors
import socket
import ssl
import sys
import threading
import time
import urllib.request

import fixtures

from monasca_common.tests.functional.api.api_case import METRICS, metric
from monasca_common.tests.functional.api.test_api_keystone import KeystoneCase
from monasca_common.tests.functional.api.test_hostile_requests import ProxiedCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS

_HEAD = b"POST /v2.0/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_TOKEN = b"X-Auth-Token: a\r\n"
SILENT = b""
HEADER = _HEAD + _TOKEN + b"X-Long: "
BODY = _HEAD + _TOKEN + b"Content-Length: 100000\r\n\r\n["
CHUNKED = _HEAD + _TOKEN + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n["
WITHOUT_TOKEN = _HEAD + b"Content-Length: 100000\r\n\r\n["
_PAUSE_SECONDS = 1.0
_ADDRESSES = 50


class SlowClients(fixtures.Fixture):
    """``counts``: the number of clients that start with these bytes and then send a byte per second. They have many
    addresses, because a proxy limits the requests of one."""

    def __init__(self, port, counts):
        self._port = port
        self._counts = counts
        self._over = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._addresses = itertools.cycle(f"127.0.1.{number + 1}" for number in range(_ADDRESSES))
        self.all_connected = threading.Event()
        self.reconnections = 0

    def _setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.addCleanup(self._close)
        thread = threading.Thread(target=self._run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self._over.set)

    def _close(self):
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _run(self):
        for beginning, count in self._counts.items():
            for _ in range(count):
                self._connect(beginning)
        self.all_connected.set()
        due = time.monotonic()
        while not self._over.is_set():
            for key, _ in self._selector.select(0.1):
                self._receive(key)
            if time.monotonic() >= due:
                due = time.monotonic() + _PAUSE_SECONDS
                for key in list(self._selector.get_map().values()):
                    if key.data != SILENT:
                        with contextlib.suppress(OSError):
                            key.fileobj.send(b"a")

    def _connect(self, beginning):
        client = socket.create_connection(("127.0.0.1", self._port), source_address=(next(self._addresses), 0))
        client.sendall(beginning)
        self._selector.register(client, selectors.EVENT_READ, beginning)

    def _receive(self, key):
        with contextlib.suppress(OSError):
            if key.fileobj.recv(65_536):
                return
        self._selector.unregister(key.fileobj)
        key.fileobj.close()
        self.reconnections += 1
        with contextlib.suppress(OSError):
            self._connect(key.data)


SLOW = 1000
_WITHOUT_TOKEN_COUNT = 100
ATTACK_SECONDS = 15.0  # longer than the time-outs of nginx for a header and for a part of a body
MOST_SECONDS = 1.0
KINDS = (SILENT, HEADER, BODY, CHUNKED)


class AttackedCase(ProxiedCase):
    def assert_served_beside(self, api, counts, headers):
        """Check that health checks, and posts with these headers, get a response within a second under attack."""
        port = self.proxy(api).port
        self.wait_until(lambda: self.ask(port, "POST", METRICS, metric("warm"), headers)[0] == 204)
        (worker,) = api.workers()
        slow = self.useFixture(SlowClients(port, counts))
        self.assertTrue(slow.all_connected.wait(PATIENCE_SECONDS))
        taken, end = [], time.monotonic() + ATTACK_SECONDS
        while time.monotonic() < end:
            for status, method, path, body in ((200, "GET", "/healthcheck", None), (204, "POST", METRICS, metric())):
                answered, text, seconds = self.ask(port, method, path, body, headers)
                self.assertEqual(status, answered, text)
                taken.append(seconds)
            time.sleep(0.05)
        sys.stderr.write(
            f"with {sum(counts.values())} slow clients, which reconnected {slow.reconnections} times, the slowest of "
            f"{len(taken)} requests took {max(taken):.3f} s\n"
        )
        self.assertLess(max(taken), MOST_SECONDS)
        self.assertEqual([worker.pid], [each.pid for each in api.workers()])


class TestSlowClients(AttackedCase):
    # Rule 50
    def test_a_thousand_slow_clients_do_not_delay_health_and_posts(self):
        api = self.api(api=["max_in_flight = 8"])
        self.assert_served_beside(api, dict.fromkeys(KINDS, SLOW // len(KINDS)), {})


@periodic("a real Keystone; TestSlowClients has all other clients")
class TestSlowClientsWithoutToken(AttackedCase, KeystoneCase):
    # Rule 50
    def test_slow_clients_do_not_delay_posts_with_a_token(self):
        token = self.keystone.token("writer", "observed")
        counts = {**dict.fromkeys(KINDS, SLOW // len(KINDS)), WITHOUT_TOKEN: _WITHOUT_TOKEN_COUNT}
        self.assert_served_beside(self.served, counts, {"X-Auth-Token": token})


class TestProxy(ProxiedCase):
    """Refusals of nginx, and responses of the API through it."""

    # Rule 51
    def test_slow_headers_and_slow_bodies_are_disconnected(self):
        proxy = self.proxy(self.api(), client_header_timeout="1s", client_body_timeout="1s")
        clients = []
        for beginning in KINDS:
            client = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS)
            self.addCleanup(client.close)
            client.sendall(beginning)
            clients.append(client)
        answers = [client.recv(4096)[:12] for client in clients]
        self.assertEqual([b"", b""], answers[:2])
        self.assertLessEqual(set(answers[2:]), {b"HTTP/1.1 408", b""})

    def test_the_number_of_requests_in_progress_per_address_is_limited(self):
        api = self.api()
        proxy = self.proxy(api, limit_conn="monasca_clients 5")
        slow = self.useFixture(SlowClients(proxy.port, {BODY: 5 * 50}))
        self.assertTrue(slow.all_connected.wait(PATIENCE_SECONDS))

        def status(source):
            with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_SECONDS, (source, 0)) as client:
                client.sendall(b"GET /v2.0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return client.makefile("rb").read()

        self.wait_until(lambda: status("127.0.1.1").startswith(b"HTTP/1.1 429"))
        self.assertIn(b'{"error":{"code":429', status("127.0.1.1"))
        self.assertTrue(status("127.0.0.9").startswith(b"HTTP/1.1 200"))

    # Rule 52
    def test_a_refused_body_of_any_size_has_a_json_response(self):
        proxy = self.proxy(self.api())
        for body, path, expected in (
            (b" " * 6_000_000, METRICS, 413),
            (b" " * 4_000_000, "/nowhere", 404),
            (b" " * 4_000_000, METRICS, 400),
        ):
            for _ in range(10):
                status, text, _ = self.ask(proxy.port, "POST", path, body)
                self.assertEqual((expected, expected), (status, json.loads(text)["error"]["code"]))

    def test_links_have_the_scheme_of_the_client(self):
        proxy = self.proxy(self.api())
        trusting = ssl.create_default_context(cafile=str(proxy.ca_file))
        for url, context in (
            (f"http://127.0.0.1:{proxy.port}/v2.0", None),
            (f"https://127.0.0.1:{proxy.tls_port}/v2.0", trusting),
        ):
            for headers in ({}, {"X-Forwarded-Proto": "gopher", "X-Forwarded-Ssl": "on"}):
                request = urllib.request.Request(url, headers=headers)
                with urllib.request.urlopen(request, context=context, timeout=PATIENCE_SECONDS) as answer:
                    self.assertEqual(url, json.load(answer)["links"][0]["href"])

    def test_an_unavailable_api_gets_status_503_in_json(self):
        api = self.api()
        proxy = self.proxy(api)
        self.assertEqual(0, api.stop())
        status, text, _ = self.ask(proxy.port, "POST", METRICS, metric())
        self.assertEqual((503, 503), (status, json.loads(text)["error"]["code"]))
