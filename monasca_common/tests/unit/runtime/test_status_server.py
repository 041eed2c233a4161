# SPDX-License-Identifier: Apache-2.0
import socket
import struct
import threading
from socketserver import TCPServer

import fixtures
from oslotest import base

from monasca_common.runtime.health import ServiceHealth
from monasca_common.runtime.metrics import ServiceMetrics
from monasca_common.runtime.status_server import StatusServer
from monasca_common.tests.served import serve
from monasca_common.tests.web import fetch


class StatusServerTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.reason = ""
        health = ServiceHealth("orders", dict, lambda: filter(None, [self.reason]), lambda: {"orders": 3})
        metrics = ServiceMetrics("monasca_orders")
        metrics.counter("sold", "Orders").inc()
        listener = socket.create_server(("127.0.0.1", 0))
        self.server = StatusServer(listener, health, metrics.registry)
        self.addCleanup(serve(self.server))
        self.base = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def get(self, path):
        return fetch(self.base + path)

    def test_a_probe_returns_the_status_and_body_of_its_check(self):
        self.assertEqual((200, '{"healthy":true,"reasons":[],"orders":3}'), self.get("/healthcheck"))
        self.reason = "unavailable"
        self.assertEqual((503, '{"healthy":false,"reasons":["unavailable"],"orders":3}'), self.get("/healthcheck"))
        self.assertEqual((200, 503), (self.get("/healthz")[0], self.get("/readyz?verbose")[0]))

    def test_prometheus_reads_the_metrics_of_the_service_and_its_probes(self):
        self.reason = "unavailable"
        _, text = self.get("/metrics")
        for line in (
            "monasca_orders_sold_total 1.0",
            'monasca_service_live{service="orders"} 1.0',
            'monasca_service_ready{service="orders"} 0.0',
        ):
            self.assertIn(line, text.splitlines())

    def connected(self):
        client = socket.create_connection(self.server.server_address, timeout=50)
        self.addCleanup(client.close)
        return client

    def test_a_client_that_disconnects_causes_no_traceback(self):
        message = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", message))
        ended, end = threading.Event(), TCPServer.shutdown_request

        def end_and_tell(server, request):
            end(server, request)
            ended.set()

        self.useFixture(fixtures.MonkeyPatch("socketserver.TCPServer.shutdown_request", end_and_tell))
        client = self.connected()
        client.sendall(b"GET /healthz")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that it resets
        client.close()
        self.assertTrue(ended.wait(50))
        message.seek(0)
        self.assertEqual("", message.read())

    def test_other_paths_get_status_404(self):
        self.assertEqual(404, self.get("/")[0])
