# SPDX-License-Identifier: Apache-2.0
"""Refusals of a broker with TLS, passwords and ACLs: reported precisely, within a second, and without spinning."""

import contextlib
import socket
import ssl
import threading
import time
import uuid
from contextlib import contextmanager

import fixtures

from monasca_common.kafka import plugins
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    FatalError,
    MessagingError,
    RetriableError,
    TransportError,
)
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.tests.functional.administration import Permission, allow, revoke
from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase

PRINCIPAL = "User:monasca"
SOON_SECONDS = 1.0
BUSY_SECONDS = 60.0  # extra time for a busy machine
DEADLINE_SECONDS = 200.0  # a caller's deadline; the error must arrive long before this deadline
SEVERAL_SECONDS = 5
IDLE_SHARE = 0.5  # share of one CPU; a spinning client uses all of it
ONCE_SECONDS = 2.0  # the CPU time of work that is done only once


class SecurityCase(ProducerCase):
    cluster_settings = {"tls": True, "sasl": True, "acl": True}  # noqa: RUF012

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()

    def allow(self, operation, name=None, resource="topic"):
        permission = Permission(PRINCIPAL, operation, resource, name or self.topic)
        allow(self.cluster.admin, permission)
        self.addCleanup(revoke, self.cluster.admin, permission)
        return permission

    @contextmanager
    def within(self, seconds):
        begun, used = time.monotonic(), time.process_time()
        yield
        elapsed = time.monotonic() - begun
        self.assertLess(elapsed, seconds + BUSY_SECONDS)
        self.assertLess(time.process_time() - used, ONCE_SECONDS + elapsed * IDLE_SHARE)

    def assert_does_not_spin(self, turn=lambda: time.sleep(0.2), most_turns=50):
        """A spinning client is never idle for a second; a slow client soon is."""

        def quiet():
            used, turns, ends_at = time.process_time(), 0, time.monotonic() + 1.0
            while time.monotonic() < ends_at:
                turn()
                turns += 1
            return time.process_time() - used < IDLE_SHARE and turns < most_turns

        self.wait_until(quiet)


class TestProducerSecurity(SecurityCase):
    def as_monasca(self, **changes):
        return self.producer(user="monasca", **changes)

    def undelivered_at_once(self, producer, topic):
        """Return the only delivery of a bulk with a distant deadline."""
        with self.within(SOON_SECONDS):
            report = producer.publish(topic, [b"denied"], timeout=DEADLINE_SECONDS)
        [delivery] = report.failed + report.unknown
        return delivery

    def test_a_password_over_tls_and_the_permission_to_write_are_sufficient(self):
        self.allow("write")
        self.as_monasca().publish(self.topic, [b"1"], timeout=SECONDS).raise_for_undelivered()
        self.assertEqual(1, len(self.log(self.topic)))

    def test_a_topic_that_may_not_be_written_is_reported_while_others_are_served(self):
        self.allow("write", self.fixture.topic())
        self.allow("describe")
        denied = self.undelivered_at_once(self.as_monasca(), self.topic)
        self.assertIsInstance(denied.error.cause, AuthorizationError)
        self.assertEqual([], self.log(self.topic))

    # Rule 6
    def test_a_missing_write_permission_is_reported_before_the_deadline(self):
        self.allow("describe")
        producer = self.as_monasca()
        denied = self.undelivered_at_once(producer, self.topic)
        self.assertIsInstance(denied.error.cause, AuthorizationError | FatalError)
        again = self.undelivered_at_once(producer, self.topic)
        self.assertIsInstance(again.error.cause, TransportError)
        self.assertIsInstance(producer.health().last_error, AuthorizationError | FatalError)
        with self.within(SOON_SECONDS):
            producer.flush(DEADLINE_SECONDS)
            producer.close(DEADLINE_SECONDS)

    def test_a_revoked_permission_is_reported_by_the_next_message(self):
        self.allow("write", self.fixture.topic())
        right = self.allow("write")
        producer = self.as_monasca()
        producer.publish(self.topic, [b"1"], timeout=SECONDS).raise_for_undelivered()
        revoke(self.cluster.admin, right)
        denied = []

        def reported():
            report = producer.publish(self.topic, [b"2"], timeout=DEADLINE_SECONDS)
            denied.extend(report.failed + report.unknown)
            return denied

        self.wait_until(reported)
        self.assertIsInstance(denied[0].error.cause, AuthorizationError)

    def test_a_topic_that_the_client_may_not_describe_is_reported_as_denied(self):
        self.allow("write")
        denied = self.undelivered_at_once(self.as_monasca(), "no-such-topic")
        self.assertIsInstance(denied.error.cause, AuthorizationError)

    def assert_not_connected(self, **changes):
        """Check a producer that cannot connect with these options: health has the reason, and the report an unknown
        outcome."""
        producer = self.producer(connection=self.connection("monasca", **changes))
        with self.within(SOON_SECONDS):
            report = producer.publish(self.topic, [b"1"], timeout=SOON_SECONDS)
        self.assertEqual((0, 1), (report.delivered_count, len(report.unknown)))
        with self.within(SOON_SECONDS):
            self.wait_for_last_error(producer, AuthenticationError)
        self.assert_does_not_spin()
        with self.within(SOON_SECONDS):
            self.assertEqual(1, len(producer.retry(report, timeout=0).unknown))
            producer.close(0)

    def wait_for_last_error(self, producer, kind):
        """Wait for the error, because the client can still be connecting when a caller's deadline passes."""
        self.wait_until(lambda: isinstance(producer.health().last_error, kind))

    # Rule 6
    def test_a_wrong_password_is_reported_by_health(self):
        self.assert_not_connected(**{"sasl.password": "wrong"})

    def test_a_broker_of_another_authority_is_reported_by_health(self):
        self.assert_not_connected(**{"ssl.ca.location": str(self.cluster.certificates / "other-ca.pem")})

    def test_missing_tls_is_reported_by_health(self):
        # The broker closes the connection, and no client can determine the reason.
        producer = self.producer(connection=ConnectionSettings(self.cluster.bootstrap_servers))
        with self.within(SOON_SECONDS):
            report = producer.publish(self.topic, [b"1"], timeout=SOON_SECONDS)
        self.assertEqual((0, 1), (report.delivered_count, len(report.unknown)))
        self.wait_for_last_error(producer, RetriableError)
        self.assert_does_not_spin()

    def test_a_denied_transactional_id_is_reported(self):
        self.allow("write")
        producer = self.as_monasca(transactional_id="not-ours")
        with self.within(SOON_SECONDS):
            self.assertRaises(AuthorizationError, producer.transaction)
            self.assertRaises(MessagingError, producer.transaction)


class TestConsumerSecurity(SecurityCase):
    def assert_denied(self, **changes):
        """Check that a poll reports the error, and that further polls neither spin nor raise."""
        consumer = self.consumer(self.topic, user="monasca", **changes)
        errors = []

        def reported():
            errors.extend(consumer.poll(timeout=0.1).errors)
            return any(isinstance(error, AuthorizationError) for error in errors)

        with self.within(SOON_SECONDS):
            self.wait_until(reported)
        self.assert_does_not_spin(lambda: consumer.poll(timeout=0.2))
        with self.within(SOON_SECONDS):
            consumer.close(SOON_SECONDS)

    def test_a_topic_that_may_not_be_read_is_reported_by_the_batch(self):
        group = uuid.uuid4().hex
        self.allow("describe")
        self.allow("read", group, "group")
        self.assert_denied(group=group)

    # Rule 16
    def test_a_group_that_may_not_be_joined_is_reported_by_the_batch(self):
        self.allow("read")
        self.assert_denied(group="not-ours")

    def test_a_group_that_may_not_be_joined_is_reported_by_the_batch_with_kip_848(self):
        self.allow("read")
        self.assert_denied(group="not-ours", group_protocol="consumer")


class Connections:
    """A server with a broker's certificate that counts connections."""

    def __init__(self, certificate, key):
        self.times = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.times.append(time.monotonic())
                with contextlib.suppress(OSError), connection:
                    connection.settimeout(BUSY_SECONDS)
                    self._context.wrap_socket(connection, server_side=True).close()

    def close(self):
        self._socket.close()


class TestReconnects(SecurityCase):
    def setUp(self):
        super().setUp()
        folder = self.cluster.certificates
        self.server = Connections(folder / "monasca.pem", folder / "monasca.key")
        self.addCleanup(self.server.close)
        security = {"security.protocol": "ssl", "ssl.ca.location": str(folder / "other-ca.pem")}
        self.log_of_client = self.useFixture(fixtures.FakeLogger("monasca_common.kafka.transport"))
        self.distrustful = ConnectionSettings(self.server.address, security=security)

    def assert_comes_back_seldom(self, turn):
        self.wait_until(lambda: turn() or len(self.server.times) > 1)
        began, before = time.monotonic(), len(self.server.times)
        while time.monotonic() < began + SEVERAL_SECONDS:
            turn()
        seconds = time.monotonic() - began
        # The producer has two clients: one requests information about topics.
        self.assertLess(len(self.server.times) - before, 12 * seconds)

    def test_a_consumer_whose_tls_fails_reconnects_rarely(self):
        settings = ConsumerSettings(self.distrustful, (self.topic,), "group")
        consumer = plugins.kafka_consumer(settings)
        self.addCleanup(consumer.close, 1.0)
        self.assert_comes_back_seldom(lambda: consumer.poll(timeout=0.1))

    def test_a_producer_whose_tls_fails_reconnects_rarely_and_reports_why(self):
        producer = self.producer(connection=self.distrustful)
        producer.send(self.topic, b"1")
        self.assert_comes_back_seldom(lambda: time.sleep(0.1))
        # The last error can be that no broker is up.
        self.wait_until(lambda: isinstance(producer.health().last_error, AuthenticationError | RetriableError))
        self.wait_until(lambda: "expired" in self.log_of_client.output)
