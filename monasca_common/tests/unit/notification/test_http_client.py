# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to a checked address, with real receivers that misbehave."""

from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker import certificates
from monasca_common.notification import http_client
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.http_client import HttpClient
from monasca_common.notification.settings import HttpSettings
from monasca_common.tests.unit.notification.receivers import ALLOWED, HttpReceiver

SECONDS = 30.0


class HttpCase(base.BaseTestCase):
    def receiver(self, **named):
        made = HttpReceiver(**named)
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
        for nonsense in ("soon", "-1", "1e9", "99999999999999999999"):
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
        self.patch(http_client, "_CONNECT_SECONDS", 0.1)
        self.assertEqual(200, self.sender().post(receiver.url(), b"{}", {}, SECONDS).status)

    def test_a_receiver_that_sends_single_bytes_is_disconnected(self):
        receiver = self.receiver()
        receiver.answer = receiver.drips
        self.assertIn("no response within 0.3 s", str(self.failure(receiver, seconds=0.3)))

    def test_only_the_beginning_of_an_endless_body_is_read(self):
        receiver = self.receiver()
        receiver.answer = receiver.floods
        answer = self.sender().post(receiver.url(), b"{}", {}, SECONDS)
        self.assertEqual((200, 65_536), (answer.status, len(answer.body)))

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
