# SPDX-License-Identifier: Apache-2.0
"""The driver's reaction to all possible responses of a server, or of another program on its port."""

import base64
import json
import socket
import threading

from oslotest import base

from monasca_common.api.service import storage_of
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.message import TopicPartition
from monasca_common.models.rows import Measurement
from monasca_common.models.series import Series
from monasca_common.storage import load_storage
from monasca_common.storage.base import Claim, Kind, Rows, Written
from monasca_common.storage.errors import NotSupported, RowsRefused, StorageUnavailable
from monasca_common.storage.influxdb import InfluxdbStorage
from monasca_common.storage.influxdb.client import address
from monasca_common.storage.settings import StorageSettings
from monasca_common.tests.contracts.storage import FixedClock
from monasca_common.tests.contracts.storage.database import NOW_MS
from monasca_common.tests.served import body_of, http_server, respond, serve
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

PASSWORD = "p@ss/word"


def error(text):
    return json.dumps({"error": text}).encode()


def rows(*names):
    values = [Measurement(Series(name.encode(), "t", "r", name, {}), NOW_MS, 1.0, None, 0) for name in names]
    return Rows(Kind.METRICS, values, range(len(values)))


class FaultCase(base.BaseTestCase):
    """With a server that records the requests.

    ``answer``: returns ``(status, body)`` for the lines of a request, or ``None`` to close the connection without a
    response.
    """

    def setUp(self):
        super().setUp()
        self.requests = []
        self.answer = lambda lines: (204, b"")
        self.closes_after_each = False
        server = http_server(self.respond, keep_alive=True)
        server.handle_error = lambda *_: None  # these tests disconnect clients on purpose
        self.addCleanup(serve(server))
        self.port = server.server_port

    def respond(self, handler):
        body = body_of(handler)
        self.requests.append((handler.path, dict(handler.headers), body))
        answer = self.answer(body.splitlines())
        # also like a server that closes an idle connection without notice
        handler.close_connection |= answer is None or self.closes_after_each
        if answer is not None:
            respond(handler, *answer)

    def storage(self, *, timeout_seconds=5.0, suffix=""):
        url = f"influxdb://mona:p%40ss%2Fword@127.0.0.1:{self.port}/metrics db{suffix}"
        settings = StorageSettings("influxdb", url, write_timeout_seconds=timeout_seconds)
        return InfluxdbStorage(settings, FixedClock())

    def writer(self, **options):
        writer = self.storage(**options).open_writer()
        self.addCleanup(writer.close)
        self.requests.clear()
        return writer

    def write(self, writer, *names):
        return writer.write(Claim("g", "t", 0, None, 0, len(names)), rows(*names))

    def refuse(self, *names, text="unable to parse '…': invalid"):
        """Refuse some points like InfluxDB: valid points of the request are stored, and the response is a refusal."""
        bad = tuple(name.encode() + b"," for name in names)
        self.answer = lambda lines: (400, error(text)) if any(line.startswith(bad) for line in lines) else (204, b"")


class TestWrites(FaultCase):
    def test_a_call_is_one_request_with_credentials_and_milliseconds(self):
        self.assertEqual(Written(stored=2), self.write(self.writer(suffix="?retention_policy=rp"), "a", "b"))
        [(path, headers, body)] = self.requests
        self.assertEqual("/write?db=metrics+db&precision=ms&rp=rp", path)
        self.assertEqual(f"mona:{PASSWORD}", base64.b64decode(headers["Authorization"].split()[1]).decode())
        self.assertEqual([b"a", b"b"], [line.partition(b",")[0] for line in body.splitlines()])

    def test_a_connection_is_kept_between_calls(self):
        writer = self.writer()
        for _ in range(3):
            self.write(writer, "a")
        self.assertEqual(3, len(self.requests))
        self.assertIsNotNone(writer._client._http._connection.sock)

    def test_a_large_call_is_several_requests(self):
        names = [f"m{number}" for number in range(25_000)]
        self.assertEqual(Written(stored=25_000), self.write(self.writer(), *names))
        self.assertEqual([10_000, 10_000, 5_000], [body.count(b"\n") + 1 for _, _, body in self.requests])

    def test_large_rows_are_several_requests(self):
        writer = self.writer()
        large = [row._replace(value_meta="x" * 3_000_000) for row in rows(*"abcde").values]
        writer.write(Claim("g", "t", 0, None, 0, 5), Rows(Kind.METRICS, large, range(5)))
        self.assertEqual([2, 2, 1], [len(body.splitlines()) for _, _, body in self.requests])

    def test_no_offsets_are_stored_with_the_rows(self):
        writer, partition = self.writer(), TopicPartition("metrics", 0)
        self.assertEqual({partition: 5}, writer.begin("g", {partition: 5}, {partition: None}))
        self.write(writer, "a")
        self.assertEqual({}, writer.next_offsets("g", {partition: None}))

    def test_a_connection_that_the_server_closed_is_opened_again(self):
        self.closes_after_each = True
        writer = self.writer()
        for _ in range(3):
            self.assertEqual(Written(stored=1), self.write(writer, "a"))


class TestRefusals(FaultCase):
    def test_rows_that_are_refused_by_themselves_are_named(self):
        writer = self.writer()
        self.refuse("bad", "worse")
        refused = self.assertRaises(RowsRefused, self.write, writer, "a", "bad", "c", "worse", "e")
        self.assertEqual({1, 3}, set(refused.reasons))
        self.assertIn("unable to parse", refused.reasons[1])

    def test_a_metric_named_like_the_alarm_history_is_refused_before_anything_is_sent(self):
        refused = self.assertRaises(RowsRefused, self.write, self.writer(), "a", "alarm_state_history")
        self.assertEqual({1}, set(refused.reasons))
        self.assertIn("alarm history", refused.reasons[1])
        self.assertEqual([], self.requests)

    def test_other_rows_of_a_call_with_a_refused_row_are_written(self):
        writer = self.writer()
        self.refuse("bad")
        self.assertRaises(RowsRefused, self.write, writer, "a", "bad", "c")
        accepted = [line for _, _, body in self.requests if b"bad" not in body for line in body.splitlines()]
        self.assertEqual({b"a", b"c"}, {line.partition(b",")[0] for line in accepted})

    def test_later_requests_also_use_the_positions_of_the_call(self):
        writer = self.writer()
        self.refuse("bad")
        names = [f"m{number}" for number in range(12_000)]
        refused = self.assertRaises(RowsRefused, self.write, writer, *names, "bad")
        self.assertEqual({12_000}, set(refused.reasons))

    def test_types_that_conflict_and_points_that_are_dropped_are_refusals_of_rows(self):
        for text in (
            "partial write: field type conflict: input field \"value\" on measurement \"m\" is type float, … dropped=1",
            "partial write: points beyond retention policy dropped=1",
            "unable to parse 'm,t=x value=1 1': max key length exceeded: 66000 > 65535",
        ):  # fmt: skip
            with self.subTest(text):
                self.answer = lambda lines: (204, b"")
                writer = self.writer()
                self.refuse("bad", text=text)
                self.assertEqual({0}, set(self.assertRaises(RowsRefused, self.write, writer, "bad").reasons))

    def test_the_length_of_a_reason_is_limited(self):
        writer = self.writer()
        self.refuse("bad", text="unable to parse " + "x" * 100_000)
        reasons = self.assertRaises(RowsRefused, self.write, writer, "bad").reasons
        self.assertLess(len(reasons[0]), 400)

    def test_other_kinds_and_reads_are_not_supported(self):
        writer = self.writer()
        self.assertRaises(NotSupported, writer.write, Claim("g", "t", 0, None, 0, 0), Rows(Kind.LOGS, [], []))
        self.assertRaises(NotSupported, self.storage().open_reader)


class TestUnavailable(FaultCase):
    def unavailable(self, writer):
        failure = str(self.assertRaises(StorageUnavailable, self.write, writer, "a"))
        self.assertNotIn(PASSWORD, failure)
        return failure

    def test_error_statuses_mean_unavailable_instead_of_refused_rows(self):
        for status, text, hint in (
            (500, error("timeout"), "timeout"),
            (503, b"<html>busy</html>", "busy"),
            (429, b"", "429"),
            (401, error("authorization failed"), "password"),
            (403, error("not authorized to write"), "WRITE"),
            (404, error("database not found"), "db upgrade"),
            (413, error("Request Entity Too Large"), "max-body-size"),
            (400, error("database is required"), "400"),
            (400, b"<html>a proxy</html>", "proxy"),
            (400, error("partial write: max-series-per-database limit exceeded: (1) dropped=1"), "raise that limit"),
            (302, b"", "302"),
            (500, b"x" * 200_000, "500"),
        ):
            with self.subTest(status=status, text=text[:40]):
                self.answer = lambda lines: (204, b"")
                writer = self.writer()
                self.answer = lambda lines, status=status, text=text: (status, text)
                self.assertIn(hint, self.unavailable(writer))
                self.answer = lambda lines: (204, b"")
                self.assertEqual(Written(stored=1), self.write(writer, "a"))

    def test_a_closed_connection_means_unavailable_after_a_second_attempt(self):
        writer = self.writer()
        self.answer = lambda lines: None
        self.unavailable(writer)
        self.assertEqual(2, len(self.requests))
        self.answer = lambda lines: (204, b"")
        self.assertEqual(Written(stored=1), self.write(writer, "a"))

    def test_a_silent_server_means_unavailable_after_the_time_out(self):
        writer = self.writer(timeout_seconds=0.2)
        answered = threading.Event()
        self.addCleanup(answered.set)
        self.answer = lambda lines: (204, b"") if answered.wait(50) else None
        self.assertIn("TimeoutError", self.unavailable(writer))

    def test_a_response_that_is_not_http_means_unavailable(self):
        with socket.create_server(("127.0.0.1", 0)) as garbage:

            def serve():
                connection, _ = garbage.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"\x00\x01 what?\r\n\r\n")

            thread = threading.Thread(target=serve)
            thread.start()
            self.port = garbage.getsockname()[1]
            self.assertRaises(StorageUnavailable, self.storage().open_writer)
            thread.join()

    def test_an_unavailable_server_is_reported_when_the_writer_is_opened(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.assertRaises(StorageUnavailable, self.storage().open_writer)

    def test_a_missing_database_is_reported_when_the_writer_is_opened(self):
        self.answer = lambda lines: (404, error('database not found: "metrics db"'))
        failure = self.assertRaises(StorageUnavailable, self.storage().open_writer)
        self.assertIn("monasca-common db upgrade", str(failure))

    def test_a_refused_upgrade_is_an_error(self):
        self.answer = lambda lines: (200, b'{"results":[{"error":"not allowed"}]}')
        self.assertRaises(StorageUnavailable, self.storage().upgrade)


class TestAddress(base.BaseTestCase):
    def test_an_address_can_contain_all_connection_parameters(self):
        found = address("influxdb+https://u:p%40w@[::1]:9000/db?retention_policy=week&ca_file=/ca.pem")
        self.assertEqual(
            ("::1", 9000, "db", True, "u", "p@w", "week", "/ca.pem"),
            (found.host, found.port, found.database, found.tls, found.user, found.password, found.retention_policy,
             found.ca_file),
        )  # fmt: skip
        self.assertEqual(8086, address("influxdb://h/db").port)
        self.assertNotIn("p@w", repr(found))

    def test_an_invalid_address_is_refused_and_not_shown(self):
        for url in (
            "influxdb://h",
            "influxdb:///db",
            "influxdb://u:secret@h/db?tls=1",
            "http://u:secret@h/db",
            "influxdb:h",
        ):
            with self.subTest(url):
                self.assertNotIn("secret", str(self.assertRaises(ConfigurationError, address, url)))


_OLD = "[influxdb]\nip_address = influx.example.org\nuser = mona\npassword = hidden\n"


class CredentialsTest(ConfigurationTestCase):
    def storage(self, url, *lines):
        return self.configured(
            "\n".join(["[storage]", "driver = influxdb", *lines, "[database]", f"connection = {url}"])
        )

    def test_a_password_without_tls_to_another_machine_is_refused_with_the_option_and_the_remedy(self):
        for host in ("influx.example.org", "10.0.0.7", "[2001:db8::7]", "localhost.example.org", "128.0.0.1"):
            refusal = self.refused(load_storage, self.storage(f"influxdb://mona:hidden@{host}:8086/monasca"))
            self.assertIn(f"sends a password to {host.strip('[]')} without TLS: write influxdb+https://", refusal)
            self.assertIn("set allow_insecure_credentials = true in group [storage]", refusal)
            self.assertNotIn("hidden", refusal)
            self.assertNotIn("mona:", refusal)

    def test_a_password_is_sent_without_tls_if_the_option_allows_it(self):
        conf = self.storage("influxdb://mona:hidden@host/monasca", "allow_insecure_credentials = true")
        self.assertIsInstance(load_storage(conf), InfluxdbStorage)

    def test_the_option_is_not_needed_with_tls_on_loopback_or_without_a_password(self):
        for url in (
            "influxdb+https://mona:hidden@host/monasca",
            "influxdb://mona:hidden@localhost/monasca",
            "influxdb://mona:hidden@127.0.0.1/monasca",
            "influxdb://mona:hidden@127.8.0.1/monasca",
            "influxdb://mona:hidden@[::1]/monasca",
            "influxdb://mona@host/monasca",
            "influxdb://host/monasca",
        ):
            with self.subTest(url):
                self.assertIsInstance(load_storage(self.storage(url)), InfluxdbStorage)

    def test_reading_does_not_need_the_option(self):
        self.assertIsNone(storage_of(self.storage("influxdb://mona:hidden@host/monasca")))

    def test_an_old_file_needs_tls_or_the_option_for_insecure_credentials(self):
        refusal = self.refused(load_storage, self.configured(_OLD))
        self.assertIn("sends a password to influx.example.org without TLS", refusal)
        self.assertIn("[influxdb] ssl = true", refusal)
        self.assertNotIn("hidden", refusal)
        for more in ("ssl = true\n", "[storage]\nallow_insecure_credentials = true\n"):
            self.assertIsInstance(load_storage(self.configured(_OLD + more)), InfluxdbStorage)
