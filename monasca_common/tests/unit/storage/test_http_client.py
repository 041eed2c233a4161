# SPDX-License-Identifier: Apache-2.0
"""The client of databases with an HTTP interface, with servers that respond slowly or incompletely."""

import socket
import threading
import time

from fixtures import MonkeyPatch
from oslotest import base

from monasca_common.storage.errors import StorageUnavailable, TooMuchAtOnce
from monasca_common.storage.http_client import DatabaseClient
from monasca_common.storage.influxdb.client import address

SECONDS = 0.3
LONGEST_SECONDS = 10.0  # a client without a deadline would wait this long


class TestResponses(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.ended = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listener.close)
        self.addCleanup(self.ended.set)
        port = self.listener.getsockname()[1]
        where = address(f"influxdb://127.0.0.1:{port}/mon")
        self.client = DatabaseClient(where, timeout_seconds=SECONDS, ca_file=None)
        self.addCleanup(self.client.close)

    def responds(self, *responses, drips=b""):
        """Serve one connection for each response, which is followed by bytes that arrive slowly, if any."""

        def serve():
            for response in responses:
                connection, _ = self.listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(response)
                    ends = time.monotonic() + LONGEST_SECONDS
                    while drips and time.monotonic() < ends and not self.ended.wait(SECONDS / 10):
                        try:
                            connection.sendall(drips)
                        except OSError:
                            break

        threading.Thread(target=serve, daemon=True).start()

    def refused(self):
        began = time.monotonic()
        error = self.assertRaises(StorageUnavailable, self.client.request, "GET", "/query", None, {})
        self.assertLess(time.monotonic() - began, LONGEST_SECONDS / 2)
        return error

    def test_a_header_that_never_ends_is_cut_at_the_time_out(self):
        self.responds(b"HTTP/1.1 200 OK\r\nX: ", drips=b"x")
        self.assertIsInstance(self.refused(), TooMuchAtOnce)

    def test_a_body_that_never_ends_is_cut_at_the_time_out(self):
        self.responds(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", drips=b"x")
        self.assertIsInstance(self.refused(), TooMuchAtOnce)

    def test_a_truncated_body_is_not_a_response(self):
        self.responds(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n{")
        self.assertIn("IncompleteRead", str(self.refused()))

    def test_too_many_threads_are_no_fault_of_the_rows(self):
        def start(_thread):
            raise RuntimeError("can't start new thread")

        self.useFixture(MonkeyPatch("threading.Thread.start", start))
        self.assertIn("can't start new thread", str(self.refused()))

    def test_a_complete_response_is_returned(self):
        self.responds(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        self.assertEqual(b"{}", self.client.request("GET", "/query", None, {}).body)
