# SPDX-License-Identifier: Apache-2.0
"""Clients that send slowly, or nothing, or too much: they cost the others nothing, and end when their time is over."""

import contextlib
import resource
import selectors
import socket
import sys
import time

from monasca_common.tests.functional.api.api_case import ApiProcessCase, metric
from monasca_common.tests.functional.waiting import PATIENCE_SECONDS
from monasca_common.tests.functional.with_constants import command_with
from monasca_common.tests.periodic import periodic

SLOW = 1000
ROUNDS = 10
# A request takes some ms beside them, and a second on a machine that is busy. With threads that read from
# connections it took as long as the slow clients had, ten minutes here.
MOST_SECONDS = 60.0


def api_with_time(seconds):
    """The command whose clients have this time for a header, and for a body."""
    times = ("monasca_common.api.server._HEADER_SECONDS", "monasca_common.api.body.BODY_SECONDS")
    return [*command_with(dict.fromkeys(times, seconds)), "api"]


LONG = api_with_time(600.0)

HEADER = b"POST /v2.0/metrics HTTP/1.1\r\nHost: x\r\nX-Auth-Token: a\r\nContent-Type: application/json\r\n"
BODY = HEADER + b"Content-Length: 100000\r\n\r\n["
CHUNKED = HEADER + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n["


class SlowClientsCase(ApiProcessCase):
    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.assertGreater(hard, 2 * SLOW, "these tests need more open files: raise the hard limit (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * SLOW), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def slow_client(self, api, begin):
        client = socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE_SECONDS)
        self.addCleanup(client.close)
        client.sendall(begin)
        return client

    def ended(self, clients):
        """What each was told, once all are ended; until then each sends a byte now and then."""
        told = dict.fromkeys(clients, b"")
        deadline = time.monotonic() + PATIENCE_SECONDS
        with selectors.DefaultSelector() as open_ones:
            for client in clients:
                open_ones.register(client, selectors.EVENT_READ)
            while open_ones.get_map():
                self.assertLess(time.monotonic(), deadline, f"{len(open_ones.get_map())} clients are not ended")
                for key, _ in open_ones.select(0.2):
                    part = b""
                    with contextlib.suppress(ConnectionResetError):
                        part = key.fileobj.recv(65_536)
                    told[key.fileobj] += part
                    if not part:
                        open_ones.unregister(key.fileobj)
                for key in list(open_ones.get_map().values()):
                    with contextlib.suppress(OSError):
                        key.fileobj.send(b"a")
        return told.values()


class TestSlowClients(SlowClientsCase):
    # Rule 50
    def test_a_thousand_of_every_kind_leave_health_and_posts_as_they_are(self):
        api = self.api(api=["max_in_flight = 8"], command=LONG)
        self.wait_until(lambda: api.post(metric("warm"))[0] == 204)  # everything is open by now
        (worker,) = api.workers()
        sending = [self.slow_client(api, kind) for kind in (HEADER, BODY, CHUNKED) for _ in range(SLOW // 5)]
        silent = [self.slow_client(api, b"") for _ in range(SLOW // 5)]
        idle = [self.slow_client(api, b"GET /v2.0 HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(SLOW // 5)]
        self.wait_until(lambda: worker.num_fds() > SLOW)
        taken = []
        for _ in range(ROUNDS):
            for client in sending:
                client.send(b"a")
            for ask in (lambda: api.request("GET", "/healthcheck"), lambda: api.post(metric())):
                began = time.monotonic()
                self.assertIn(ask()[0], (200, 204))
                taken.append(time.monotonic() - began)
        sys.stderr.write(f"beside {SLOW} slow clients the slowest of {len(taken)} requests took {max(taken):.3f} s\n")
        self.assertLess(max(taken), MOST_SECONDS)
        self.assertEqual([worker.pid], [each.pid for each in api.workers()])
        self.assertEqual([], [client for client in sending + silent if not self.is_open(client)])  # they were there
        self.assertEqual({b"HTTP/1.1 200 OK"}, {client.recv(4096).split(b"\r\n")[0] for client in idle})

    def is_open(self, client):
        client.setblocking(False)
        try:
            return client.recv(1) != b""
        except BlockingIOError:
            return True

    # Rule 51
    def test_their_time_is_over_whatever_they_send(self):
        api = self.api(command=api_with_time(1.0))
        clients = [self.slow_client(api, kind) for kind in (HEADER, BODY, CHUNKED) for _ in range(20)]
        silent = self.slow_client(api, b"")
        answers = {answer.split(b"\r\n")[0] for answer in self.ended(clients)}
        # On a very slow machine, one may have sent nothing of its request in time, and is told nothing.
        self.assertEqual({b"HTTP/1.1 408 Request Timeout"}, answers - {b""})
        self.assertEqual(b"", silent.recv(1))
        # A second is all that this one has, too, and on a busy machine it may be late itself.
        self.wait_until(lambda: api.post(metric())[0] == 204, "a post in time")
        self.assertEqual(0, api.stop())
        self.assertRegex(api.text(), "connections ended early .*: .*a body took too long")


@periodic("the unit tests of the connections answer early")
class TestEarlyAnswers(SlowClientsCase):
    # Rule 52
    def test_a_body_that_is_too_large_is_answered_to_who_still_sends_it(self):
        api = self.api(api=["max_body_bytes = 1000000"])
        for length in (b"Content-Length: 20000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1312d00\r\n"):
            client = self.slow_client(api, HEADER + length + b" " * 20_000_000)
            answer = client.recv(65_536)
            self.assertEqual((b"413", True), (answer.split()[1], b'"code":413' in answer))
            self.assertEqual(b"", client.recv(1))

    def test_what_reaches_no_resource_is_answered_in_json_whatever_it_is(self):
        api = self.api()
        for bad in (b"FROB / HTTP/1.1\r\n\r\n", HEADER + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n"):
            client = self.slow_client(api, bad)
            answer = client.recv(65_536)
            self.assertEqual((b"400", True), (answer.split()[1], b'{"error":{"code":400' in answer))
            self.assertEqual(b"", client.recv(1))
        self.assertEqual(404, api.post(b" " * 1_000_000, path="/nowhere")[0])
        status, _, body = api.request("GET", "/v2.0", headers={"SCRIPT_NAME": "/elsewhere", "Script-Name": "/x"})
        self.assertEqual((200, f"http://127.0.0.1:{api.port}/v2.0"), (status, body["links"][0]["href"]))


class TestOpenFiles(SlowClientsCase):
    FILES = 300

    def test_where_files_are_few_so_are_connections_and_it_says_so(self):
        api = self.api(command=["bash", "-c", f'ulimit -n {self.FILES} && exec "$@"', "-", *LONG])
        self.assertIn(f"{self.FILES} open files, which allows 44 connections", api.text())
        clients = [self.slow_client(api, HEADER) for _ in range(self.FILES)]
        self.assertEqual(204, api.post(metric())[0])
        self.wait_until(lambda: sum(self.is_over(client) for client in clients) >= self.FILES - 44)
        self.assertNotIn("no more connections can be accepted", api.text())

    def is_over(self, client):
        client.setblocking(False)
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
