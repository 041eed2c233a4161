# SPDX-License-Identifier: Apache-2.0
import time
from types import SimpleNamespace

from oslotest import base

from monasca_common.api.settings import ApiSettings
from monasca_common.api.status import ApiStatus
from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.served import http_server, respond, serve


class ApiStatusTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.workers = {}
        server = http_server(lambda handler: respond(handler, *self.response))
        self.addCleanup(serve(server))
        self.status = ApiStatus(ApiSettings(host="0.0.0.0", port=server.server_port), lambda: self.workers)

    def answered(self, status, body):
        """Return readiness and health while a worker gives this response."""
        self.response = status, body
        return self.status.ready(), self.status.health()

    def worker(self, age):
        def last_update():
            if age is None:
                raise ValueError("its file is closed")
            return time.monotonic() - age

        return SimpleNamespace(tmp=SimpleNamespace(last_update=last_update))

    def test_the_api_is_ready_if_a_worker_is(self):
        (is_ready, _), (is_well, body) = self.answered(200, b'{"status":"ok","producer":{"status":"ok"}}')
        self.assertEqual((True, True, "ok"), (is_ready, is_well, body["status"]))

    def test_reasons_of_a_worker_are_reasons_of_the_api(self):
        body = b'{"status":"failing","producer":{"status":"ok"},"storage":{"status":"failing"}}'
        (is_ready, reported), (is_well, _) = self.answered(503, body)
        self.assertEqual((False, ["storage is failing"], False), (is_ready, reported["reasons"], is_well))

    def test_malformed_and_missing_responses_are_not_ready(self):
        (is_ready, reported), _ = self.answered(200, b"<html>")
        self.assertEqual((False, 1), (is_ready, len(reported["reasons"])))
        (port,) = free_ports(1)
        is_ready, reported = ApiStatus(ApiSettings(port=port), dict).ready()
        self.assertFalse(is_ready)
        self.assertIn("no worker responds", reported["reasons"][0])

    def test_a_worker_that_responds_with_an_error_is_a_reason(self):
        body = b'{"error":{"code":500,"title":"Internal Server Error","message":"this was not expected"}}'
        (is_ready, reported), (is_well, known) = self.answered(500, body)
        self.assertEqual((False, ["a worker responds with 500"], False), (is_ready, reported["reasons"], is_well))
        self.assertEqual("this was not expected", known["error"]["message"])

    def test_the_api_is_live_while_all_workers_turn(self):
        self.workers = {7: self.worker(1.0), 8: self.worker(None)}
        self.assertTrue(self.status.live()[0])
        self.workers[9] = self.worker(601.0)
        self.assertFalse(self.status.live()[0])
