# SPDX-License-Identifier: Apache-2.0
"""Connections over real sockets, with a clock that stands still; one thread is all there is."""

import contextlib
import errno
import json
import socket

from oslotest import base

from monasca_common.api.connections import ConnectionLimits, Connections, Wait
from monasca_common.api.http_messages import HttpRules, answer_of, error_answer

SECONDS = {"header_seconds": 10.0, "body_seconds": 20.0, "answer_seconds": 40.0, "idle_seconds": 80.0}
GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
LARGEST_BODY = 10_000_000
TURNS = 2000  # of 10 ms, until something that was sent has arrived


def application(environ, start_response):
    """Answers the number of bytes that it was sent, or as many as its path says."""
    asked = environ["PATH_INFO"][1:]
    body = environ["wsgi.input"].read()
    start_response("200 OK", [])
    return [b"x" * int(asked) if asked.isdigit() else str(len(body)).encode()]


class ConnectionsCase(base.BaseTestCase):
    has_time = True

    def setUp(self):
        super().setUp()
        self.time = 1000.0
        self.requests, self.refusals, self.looked = [], [], []
        self.listener = self.closed_at_end(socket.create_server(("127.0.0.1", 0), backlog=500))

    def closed_at_end(self, resource):
        self.addCleanup(resource.close)
        return resource

    def connections(self, *, connections=100, waiting_bytes=1_000_000, wanted=lambda _environ: True):
        limits = ConnectionLimits(**SECONDS, connections=connections, waiting_bytes=waiting_bytes)
        rules = HttpRules(LARGEST_BODY, body_wanted=wanted)
        self.served = self.closed_at_end(
            Connections(limits, rules, self.serve, self.refuse, self.look, now=lambda: self.time)
        )
        self.served.listen([self.listener])
        return self.served

    def serve(self, connection, request):
        self.requests.append((connection, request))

    def look(self, connection, request):
        self.looked.append((connection, request))
        return self.has_time

    def refuse(self, address, refused):
        self.refusals.append((address, refused.status, refused.reason))
        return error_answer(refused.status, refused.message)

    def answer_all(self):
        while self.requests:
            connection, request = self.requests.pop(0)
            closes = not (request.keep_alive and request.is_read)
            self.served.answered(connection, answer_of(application, request, closes=closes))
        self.served.turn(0)

    def until(self, condition):
        for _ in range(TURNS):
            if condition():
                return
            self.served.turn(0.01)
        self.fail("it did not come about")

    def client(self, data=b"", *, at=Wait.REQUEST, receive_bytes=None):
        """A connection that has sent this and is ``at`` what it makes of it."""
        client = self.closed_at_end(socket.socket())
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(self.listener.getsockname())
        client.setblocking(False)
        self.send(client, data)
        self.until(lambda: self.place(client) is at)
        return client

    def connection(self, client):
        """What the server has of it, or None."""
        address = client.getsockname()
        return next((each for each in self.served._all.values() if each.sock.getpeername() == address), None)

    def place(self, client):
        connection = self.connection(client)
        return connection and connection.wait

    def send(self, client, data):
        """All of it, while it is received."""
        left = memoryview(data)

        def sent():
            nonlocal left
            with contextlib.suppress(BlockingIOError):
                left = left[client.send(left) :]
            return not left

        self.until(sent)

    def pass_time(self, seconds):
        self.time += seconds
        self.served.turn(0)

    def request(self, data):
        """A client whose request is with a thread."""
        return self.client(data, at=Wait.SERVED)

    def told(self, client):
        """Status and body of the next answer."""
        text = b""

        def whole():
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                text += client.recv(1 << 20)
            head, _, body = text.partition(b"\r\n\r\n")
            length = [line[16:] for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
            return bool(length) and len(body) >= int(length[0])

        self.until(whole)
        head, _, body = text.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def assert_ended(self, client):
        """The end is heard by the client, and is no reset."""

        def heard():
            with contextlib.suppress(BlockingIOError):
                return client.recv(1 << 20) == b""
            return False

        self.until(heard)

    def assert_open(self, client):
        self.served.turn(0)
        self.assertRaises(BlockingIOError, client.recv, 1)


class TestLife(ConnectionsCase):
    def test_requests_on_one_connection_are_answered_one_after_the_other(self):
        self.connections()
        client = self.request(POST % 3 + b"abc")
        self.answer_all()
        self.assertEqual((200, b"3"), self.told(client))
        self.send(client, GET + POST % 1 + b"a" + GET)
        answers = []
        for _ in range(3):
            self.until(lambda: self.requests)
            self.assertEqual(1, len(self.requests))
            self.answer_all()
            answers.append(self.told(client))
        self.assertEqual([(200, b"0"), (200, b"1"), (200, b"0")], answers)
        self.assert_open(client)

    # Rule 50
    def test_a_request_reaches_a_thread_only_when_it_is_whole(self):
        self.connections()
        client = self.client(POST % 3 + b"ab", at=Wait.BODY)
        self.request(GET)
        self.assertEqual(["GET"], [request.environ["REQUEST_METHOD"] for _, request in self.requests])
        self.send(client, b"c")
        self.until(lambda: len(self.requests) == 2)

    def test_who_asks_whether_to_send_a_body_is_told_to(self):
        self.connections()
        client = self.client((POST % 3).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), at=Wait.BODY)
        told = []

        def continued():
            with contextlib.suppress(BlockingIOError):
                told.append(client.recv(1000))
            return bool(told)

        self.until(continued)
        self.assertEqual([b"HTTP/1.1 100 Continue\r\n\r\n"], told)
        self.send(client, b"abc")
        self.until(lambda: self.requests)
        self.answer_all()
        self.assertEqual((200, b"3"), self.told(client))

    def test_a_client_that_hangs_up_is_forgotten_whatever_it_is_at(self):
        self.connections()
        for data, at in ((b"", Wait.REQUEST), (b"GET", Wait.HEADER), (POST % 3, Wait.BODY), (GET, Wait.SERVED)):
            self.client(data, at=at).close()
        self.answer_all()
        self.until(lambda: not len(self.served))

    def test_who_closes_its_half_is_answered(self):
        self.connections()
        client = self.request(GET)
        client.shutdown(socket.SHUT_WR)
        self.answer_all()
        self.assertEqual(200, self.told(client)[0])
        self.assert_ended(client)

    def test_a_fault_of_ours_ends_one_connection_only(self):
        self.connections()
        other, faulty = self.client(b"GET", at=Wait.HEADER), self.client()
        self.served._serve = None  # calling it raises
        self.send(faulty, GET)
        self.assert_ended(faulty)
        self.assert_open(other)


class TestDeadlines(ConnectionsCase):
    def test_who_sends_nothing_is_dropped(self):
        self.connections()
        client = self.client()
        self.pass_time(9)
        self.assert_open(client)
        self.pass_time(1.1)
        self.assert_ended(client)

    # Rule 51
    def test_a_header_has_its_time_whatever_comes_of_it(self):
        self.connections()
        client = self.client(b"GET / HTTP/1.1\r\nX-A: ", at=Wait.HEADER)
        for _ in range(9):
            self.pass_time(1)
            self.send(client, b"a")
            self.assert_open(client)
        self.pass_time(1.1)
        self.assertEqual(408, self.told(client)[0])
        self.assert_ended(client)
        self.assertEqual([("127.0.0.1", 408, "header_too_slow")], self.refusals)

    # Rule 51
    def test_a_body_has_its_time_whatever_comes_of_it(self):
        self.connections()
        for body in (POST % 1000, POST.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"fff\r\n"):
            client = self.client(body, at=Wait.BODY)
            for _ in range(19):
                self.pass_time(1)
                held = self.served._waiting_bytes
                self.send(client, b"a")
                self.until(lambda before=held: self.served._waiting_bytes > before)
                self.assert_open(client)
            self.pass_time(1.1)
            status, told = self.told(client)
            self.assertEqual((408, 408), (status, json.loads(told)["error"]["code"]))
            self.assert_ended(client)
        self.assertEqual(([], 0), (self.requests, self.served._waiting_bytes))

    def test_who_takes_no_answer_is_dropped(self):
        self.connections()
        self.client(b"GET /20000000 HTTP/1.1\r\n\r\n", at=Wait.SERVED, receive_bytes=4096)
        self.answer_all()
        self.pass_time(39)
        self.assertEqual(1, len(self.served))
        self.pass_time(1.1)
        self.assertEqual((0, 0), (len(self.served), self.served._waiting_bytes))

    def test_an_idle_connection_is_kept_for_a_while(self):
        self.connections()
        client = self.request(GET)
        self.pass_time(1000)  # a thread may take as long as it likes
        self.answer_all()
        self.assertEqual(200, self.told(client)[0])
        self.pass_time(79)
        self.assert_open(client)
        self.pass_time(1.1)
        self.assert_ended(client)

    def test_a_stop_waits_for_requests_and_not_for_idle_clients(self):
        self.connections()
        idle, begun, silent = self.request(GET), self.client(b"GET", at=Wait.HEADER), self.client()
        self.answer_all()
        self.assertEqual(200, self.told(idle)[0])
        self.served.stop()
        self.pass_time(2.1)
        for client in (idle, silent):
            self.assert_ended(client)
        self.send(begun, GET[3:])
        self.until(lambda: self.requests)
        self.answer_all()
        self.assertEqual(200, self.told(begun)[0])
        self.pass_time(2.1)
        self.assertEqual(0, len(self.served))


class TestEarlyAnswers(ConnectionsCase):
    # Rule 52
    def test_an_answer_reaches_who_still_sends_a_large_body(self):
        self.connections(wanted=lambda _environ: False)
        client = self.request(POST % 5_000_000)
        self.answer_all()
        self.send(client, b"a" * 5_000_000)
        self.assertEqual((200, b"0"), self.told(client))
        self.assert_ended(client)

    def test_so_does_one_to_a_body_that_is_too_large(self):
        self.connections()
        client = self.request(POST % (LARGEST_BODY + 1))
        self.answer_all()
        self.send(client, b"a" * (LARGEST_BODY + 1))
        self.assertEqual(200, self.told(client)[0])

    def test_who_sends_a_byte_now_and_then_is_dropped_soon(self):
        self.connections(wanted=lambda _environ: False)
        client = self.request(POST % 1000)
        self.answer_all()
        self.assertEqual(200, self.told(client)[0])
        for _ in range(9):
            self.pass_time(0.1)
            self.send(client, b"a")
        self.assertEqual(1, len(self.served))
        self.pass_time(1.1)
        self.assertEqual(0, len(self.served))

    def test_who_sends_quickly_and_without_end_is_dropped_as_well(self):
        self.connections(wanted=lambda _environ: False)
        client = self.request(POST % 1_000_000_000)
        self.answer_all()
        self.send(client, b"a" * 30_000_000)
        self.pass_time(29)
        self.assertEqual(1, len(self.served))
        self.pass_time(1.1)
        self.assertEqual(0, len(self.served))

    def test_what_is_no_http_is_answered_in_json_and_ended(self):
        self.connections()
        client = self.client(b"FROB / HTTP/1.1\r\n\r\n")
        status, body = self.told(client)
        self.assertEqual((400, 400), (status, json.loads(body)["error"]["code"]))
        self.assert_ended(client)


class TestLooks(ConnectionsCase):
    """At requests whose bodies come slowly."""

    def test_where_nobody_has_time_it_is_asked_again_later_and_nothing_piles_up(self):
        self.connections()
        for _ in range(3):
            self.client(POST % 1000, at=Wait.BODY)
        self.has_time = False
        self.pass_time(1.1)
        self.assertEqual(1, len(self.looked))
        self.has_time = True
        self.pass_time(0.3)
        first, *others = [connection for connection, _ in self.looked]
        self.assertEqual((3, True), (len(others), first in others))

    def looked_at(self, data):
        self.connections()
        client = self.client(data, at=Wait.BODY)
        self.pass_time(1.1)
        return client

    def answer_early(self):
        connection, request = self.looked.pop()
        self.served.answered_early(connection, request, answer_of(application, request, closes=True))
        self.served.turn(0)

    def test_a_body_that_is_slow_is_looked_at_once_and_without_what_has_come_of_it(self):
        self.connections()
        for framing in (b"Content-Length: 1000", b"Transfer-Encoding: chunked"):
            self.client(b"POST /a HTTP/1.1\r\nX-A: b\r\n" + framing + b"\r\n\r\n5\r\n", at=Wait.BODY)
        self.pass_time(0.9)
        self.assertEqual([], self.looked)
        for _ in range(9):
            self.pass_time(0.3)
        self.assertEqual(2, len(self.looked))
        for _, request in self.looked:
            environ = request.environ
            self.assertEqual(("b", b"", False), (environ["HTTP_X_A"], environ["wsgi.input"].read(), request.is_read))

    def test_the_answer_to_it_ends_the_connection_at_once(self):
        client = self.looked_at(POST % 1000 + b"abc")
        self.answer_early()
        self.assertEqual((200, b"0"), self.told(client))
        self.assert_ended(client)
        self.assertEqual(([], 0), (self.requests, self.served._waiting_bytes))

    def test_one_that_comes_later_than_the_body_is_dropped(self):
        client = self.looked_at(POST % 3 + b"ab")
        self.send(client, b"c")
        self.until(lambda: self.requests)
        self.answer_early()
        self.answer_all()
        self.assertEqual((200, b"3"), self.told(client))
        self.assert_open(client)

    # Rule 54
    def test_so_is_one_that_comes_when_the_next_request_has_begun(self):
        client = self.looked_at(POST % 3 + b"ab")
        self.send(client, b"c" + POST % 5 + b"d")
        self.until(lambda: self.requests)
        self.answer_all()
        self.assertEqual((200, b"3"), self.told(client))
        self.until(lambda: self.place(client) is Wait.BODY)
        self.answer_early()
        self.assert_open(client)
        self.pass_time(1.1)
        self.assertEqual(1, len(self.looked))  # at the next one, too

    def test_so_is_one_whose_client_has_gone(self):
        client = self.looked_at(POST % 3)
        client.close()
        self.until(lambda: not len(self.served))
        self.answer_early()
        self.assertEqual(0, len(self.served))


class TestPressure(ConnectionsCase):
    def test_one_connection_too_many_ends_the_one_that_waits_longest(self):
        self.connections(connections=3)
        served, old = self.request(GET), self.client(b"GET", at=Wait.HEADER)
        young, new = self.client(b"GET", at=Wait.HEADER), self.request(GET)
        self.assert_ended(old)
        self.assert_open(young)
        self.answer_all()
        self.assertEqual([200, 200], [self.told(client)[0] for client in (served, new)])

    def test_where_threads_have_all_of_them_one_too_many_is_not_taken(self):
        self.connections(connections=1)
        self.request(GET)
        client = self.closed_at_end(socket.create_connection(self.listener.getsockname()))
        client.setblocking(False)
        self.assert_ended(client)

    def test_too_many_bytes_end_those_that_wait_longest_and_never_the_only_one(self):
        self.connections(waiting_bytes=1000)
        silent, only = self.client(), self.client(POST % 5000 + b"a" * 4000, at=Wait.BODY)
        self.until(lambda: self.served._waiting_bytes > 4000)
        self.assert_open(only)
        young = self.client(POST % 5000 + b"a" * 500, at=Wait.BODY)
        self.assert_ended(only)
        for client in (silent, young):
            self.assert_open(client)

    def test_when_files_run_out_the_log_says_so_and_the_longest_waiting_goes(self):
        self.connections()
        old, young = self.client(b"GET", at=Wait.HEADER), self.client()

        class NoFiles:
            def accept(self):
                raise OSError(errno.EMFILE, "Too many open files")

        with self.assertLogs("monasca_common.api.connections", "ERROR") as logs:
            self.served._accept(NoFiles())
        self.assertIn("LimitNOFILE", logs.output[0])
        self.assert_ended(old)
        self.assert_open(young)

    def test_what_was_ended_early_is_reported_once_a_minute(self):
        self.connections()
        self.client()
        self.client(b"GET", at=Wait.HEADER)
        self.pass_time(11)
        with self.assertLogs("monasca_common.api.connections", "WARNING") as logs:
            self.pass_time(60)
        self.assertIn("no request came: 1, a header took too long: 1", logs.output[0])
