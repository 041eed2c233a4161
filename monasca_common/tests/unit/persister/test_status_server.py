# SPDX-License-Identifier: Apache-2.0
import json
import socket
import threading
import urllib.error
import urllib.request

from oslotest import base

from monasca_common.persister.status import MemberState, Status
from monasca_common.persister.status_board import StatusBoard
from monasca_common.persister.status_server import status_server
from monasca_common.storage.base import Kind

RUNNING = Status(
    "metrics-0",
    Kind.METRICS,
    pid=7,
    state=MemberState.RUNNING,
    since_ms=1000,
    written_ms=3000,
    told_ms=5000,
    lag={"metrics/0": 2, "metrics/1": 3},
    stored=10,
    dead_letters=1,
    writes=4,
    write_seconds=2.0,
    write_classes=[0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1],
)


class StatusServerTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.board = StatusBoard([RUNNING, Status("logs-0", Kind.LOGS, state=MemberState.RUNNING)])
        listener = socket.create_server(("127.0.0.1", 0))
        self.server = status_server(listener, self.board)
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.base = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def get(self, path):
        try:
            with urllib.request.urlopen(self.base + path, timeout=50) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_health_is_200_while_every_worker_runs(self):
        code, body = self.get("/healthcheck")
        self.assertEqual(200, code)
        self.assertEqual(
            {
                "state": "running",
                "reason": "",
                "seconds_in_state": 4.0,
                "lag": 5,
                "partitions": 2,
                "seconds_since_write": 2.0,
                "pid": 7,
                "restarts": 0,
            },
            json.loads(body)["workers"]["metrics-0"],
        )

    def test_health_is_503_with_the_reason_while_one_waits(self):
        self.board.write(Status("logs-0", Kind.LOGS, state=MemberState.WAITING_FOR_DATABASE, reason="away"))
        code, body = self.get("/healthcheck")
        self.assertEqual(503, code)
        self.assertFalse(json.loads(body)["healthy"])
        self.assertEqual("away", json.loads(body)["workers"]["logs-0"]["reason"])

    def test_prometheus_reads_counters_and_lag(self):
        _, text = self.get("/metrics")
        for line in (
            'monasca_persister_rows_total{outcome="stored",worker="metrics-0"} 10.0',
            'monasca_persister_dead_letters_total{worker="metrics-0"} 1.0',
            'monasca_persister_lag{partition="1",topic="metrics",worker="metrics-0"} 3.0',
            'monasca_persister_write_seconds_sum{worker="metrics-0"} 2.0',
            'monasca_persister_write_seconds_count{worker="metrics-0"} 4.0',
            'monasca_persister_write_seconds_bucket{le="0.01",worker="metrics-0"} 0.0',
            'monasca_persister_write_seconds_bucket{le="0.025",worker="metrics-0"} 1.0',
            'monasca_persister_write_seconds_bucket{le="30.0",worker="metrics-0"} 3.0',
            'monasca_persister_write_seconds_bucket{le="+Inf",worker="metrics-0"} 4.0',
            'monasca_persister_worker_state{state="running",worker="logs-0"} 1.0',
            'monasca_persister_worker_state{state="waiting_for_the_database",worker="logs-0"} 0.0',
            'monasca_persister_worker_state{state="failed",worker="logs-0"} 0.0',
        ):
            self.assertIn(line, text.splitlines())

    def test_anything_else_is_not_there(self):
        self.assertEqual(404, self.get("/")[0])
