# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to a checked address, with real receivers that misbehave."""

import socket
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker import certificates
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.notification import addresses, http_client
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.settings import HttpSettings
from monasca_common.runtime.send_deadline import SendDeadline
from monasca_common.tests.unit.notification.receivers import ALLOWED, HttpReceiver

SECONDS = 30.0


class UnboundedReceiver(HttpReceiver):
    flooded = 0

    def drips(self, handler):
        """Send an endless status, one digit after another."""
        handler.wfile.write(b"HTTP/1.1 ")
        while not self.over.wait(0.01):
            handler.wfile.write(b"2")

    def floods_after(self, head):
        """Return a response that sends ``head``, and then counts the ``flooded`` bytes until the client disconnects."""

        def answer(handler):
            handler.wfile.write(head)
            while not self.over.is_set():
                handler.wfile.write(b"x" * 65536)
                self.flooded += 65536

        return answer

    def answers_after(self, seconds, status):
        def answer(handler):
            self.over.wait(seconds)
            self.answers(status)(handler)

        return answer


class HttpCase(base.BaseTestCase):
    def receiver(self, **named):
        made = UnboundedReceiver(**named)
        self.addCleanup(made.close)
        return made

    def sender(self, **settings):
        """Return a sender that resolves every name to this machine."""
        return HttpClient(
            HttpSettings(ALLOWED, **settings), lambda _, port, **__: [(None, None, None, "", ("127.0.0.1", port))]
        )

    def failure(self, receiver, *, seconds=SECONDS, **settings):
        return self.assertRaises(
            SendFailed, self.sender(**settings).post, receiver.url("/secret-token"), b"{}", {}, seconds
        )


class AnswersTest(HttpCase):
    def test_the_original_host_and_path_arrive_at_the_checked_address(self):
        receiver = self.receiver()

        self.sender().post(receiver.url("/a?b=c", host="hooks.example"), b"{}", {"Idempotency-Key": "1"}, SECONDS)

        [(path, headers, body)] = receiver.requests
        self.assertEqual(("/a?b=c", b"{}"), (path, body))
        self.assertEqual((f"hooks.example:{receiver.port}", "1"), (headers["Host"], headers["Idempotency-Key"]))
        self.assertLessEqual(
            headers.keys(),
            {
                "Host",
                "User-Agent",
                "Connection",
                "Idempotency-Key",
                "Content-Length",
                "Content-Type",
                "Accept-Encoding",
            },
        )

    def test_the_next_address_of_a_host_is_used_if_the_first_refuses_connections(self):
        receiver = self.receiver()
        found = [(None, None, None, "", (address, receiver.port)) for address in ("127.0.0.2", "127.0.0.1")]
        client = HttpClient(HttpSettings(ALLOWED), lambda *_, **__: found)
        self.assertEqual(200, client.post(receiver.url(host="hooks.example"), b"{}", {}, SECONDS).status)

    def test_a_redirect_is_a_failure_and_is_not_followed(self):
        receiver = self.receiver()
        for status in (301, 302, 303, 307, 308):
            receiver.answer = receiver.answers(status, Location=receiver.url("/inside"))
            self.assertIn(f"responded with {status}; redirects are not followed", str(self.failure(receiver)))
        self.assertEqual({"/secret-token"}, {path for path, _, _ in receiver.requests})

    def test_a_proxy_of_the_environment_is_not_used(self):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            self.useFixture(fixtures.EnvironmentVariable(name, "http://127.0.0.1:1/"))
        receiver = self.receiver()

        self.assertEqual(200, self.sender().post(receiver.url(), b"{}", {}, SECONDS).status)

    def test_the_retry_after_of_the_receiver_is_read(self):
        receiver = self.receiver()
        for status in (429, 500, 503):
            receiver.answer = receiver.answers(status, Retry_After="7")
            failure = self.failure(receiver)
            self.assertEqual(7.0, failure.after_seconds)
            self.assertIn(f"responded with {status}", str(failure))
        for nonsense in ("soon", "-1", "1e9", "99999999999999999999", "\x1f9999999"):
            receiver.answer = receiver.answers(429, Retry_After=nonsense)
            self.assertIn(self.failure(receiver).after_seconds, (None, 24 * 3600.0))

    def test_a_failure_shows_only_the_host_of_an_address(self):
        receiver = self.receiver()
        for answer in (receiver.answers(500), receiver.cuts, receiver.answers(302, Location="/secret-token")):
            receiver.answer = answer
            failure = self.failure(receiver)
            self.assertNotIn("secret-token", str(failure))
            self.assertIsNone(failure.__cause__)


class BoundsTest(HttpCase):
    def test_a_receiver_that_sends_nothing_is_disconnected(self):
        receiver = self.receiver()
        receiver.answer = receiver.hangs
        self.assertRegex(str(self.failure(receiver, seconds=0.1)), "no response (in time|within 0.1 s)")

    def test_a_response_can_take_longer_than_the_time_out_of_connecting(self):
        receiver = self.receiver()
        receiver.answer = receiver.answers_after(0.5, 200)
        self.patch(addresses, "_CONNECT_SECONDS", 0.1)
        self.assertEqual(200, self.sender().post(receiver.url(), b"{}", {}, SECONDS).status)

    def test_a_receiver_that_sends_single_bytes_is_disconnected(self):
        receiver = self.receiver()
        receiver.answer = receiver.drips
        self.assertIn("no response within 0.3 s", str(self.failure(receiver, seconds=0.3)))

    def test_only_the_beginning_of_an_endless_body_is_read(self):
        receiver = self.receiver()
        receiver.answer = receiver.floods_after(b"HTTP/1.1 200 OK\r\n\r\n")
        answer = self.sender().post(receiver.url(), b"{}", {}, SECONDS)
        self.assertEqual((200, 65_536), (answer.status, len(answer.body)))

    def test_only_the_beginning_of_a_chunk_of_negative_size_is_read(self):
        receiver = self.receiver()
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for size in (b"-1", b"-5"):
            receiver.answer = receiver.floods_after(head + size + b"\r\n")
            self.assertEqual(200, self.sender().post(receiver.url(), b"{}", {}, 5.0).status)
        self.assertLess(receiver.flooded, 32 << 20)  # the buffers of both sockets

    def test_head_and_body_of_a_request_do_not_wait_for_each_other(self):
        opened = []
        connect = socket.create_connection

        def note(*arguments):
            connection = connect(*arguments)
            opened.append(connection.dup())  # a duplicate shares the options, and outlives the connection
            self.addCleanup(opened[-1].close)
            return connection

        self.patch(http_client.socket, "create_connection", note)
        self.sender().post(self.receiver().url(), b"{}", {}, SECONDS)
        self.assertEqual([1], [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in opened])

    def test_a_connection_that_opens_after_the_deadline_is_shut_down(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        theirs.settimeout(SECONDS)
        with SendDeadline(0.01) as deadline:
            deadline._timer.join()
            deadline.watch(ours)
            self.assertEqual(b"", theirs.recv(1))

    def test_a_closed_connection_is_a_failure(self):
        receiver = self.receiver()
        receiver.answer = receiver.cuts
        self.assertIn("the connection failed", str(self.failure(receiver)))

    def test_a_refused_connection_is_a_failure(self):
        receiver = self.receiver()
        receiver.close()
        self.assertIn("the connection was refused", str(self.failure(receiver)))


class TlsTest(HttpCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        certificates.issue(self.folder, [])
        self.secure = self.receiver(tls=self.folder / "broker.pem")

    def post(self, host, authority="ca.pem"):
        sender = self.sender(ca_file=str(self.folder / authority))
        return sender.post(self.secure.url(host=host, scheme="https"), b"{}", {}, SECONDS)

    def test_the_original_host_is_requested_and_its_certificate_checked(self):
        self.assertEqual(200, self.post("localhost").status)
        self.assertEqual(["localhost"], self.secure.names)

    def test_a_certificate_of_another_host_is_refused(self):
        failure = self.assertRaises(SendFailed, self.post, "hooks.example")
        self.assertIn("TLS failed", str(failure))
        self.assertEqual([], self.secure.requests)

    def test_a_certificate_of_another_authority_is_refused(self):
        self.assertRaises(SendFailed, self.post, "localhost", "other-ca.pem")
        self.assertEqual([], self.secure.requests)

    def test_the_common_name_of_a_certificate_is_no_host(self):
        authority = certificates._Authority("a CA")
        key, certificate = authority.sign("localhost")
        self.folder.joinpath("named.pem").write_bytes(key + certificate)
        self.folder.joinpath("named-ca.pem").write_bytes(authority.pem)
        self.secure = self.receiver(tls=self.folder / "named.pem")
        self.assertRaises(SendFailed, self.post, "localhost", "named-ca.pem")
        self.assertEqual([], self.secure.requests)

    def test_an_unusable_file_of_authorities_is_refused_at_the_start(self):
        self.folder.joinpath("empty.pem").touch()
        for name in ("missing.pem", "empty.pem"):
            refused = self.assertRaises(ConfigurationError, self.sender, ca_file=str(self.folder / name))
            self.assertRegex(str(refused), f"ca_file in group .notification. is '.*{name}', .*: name a readable PEM")
