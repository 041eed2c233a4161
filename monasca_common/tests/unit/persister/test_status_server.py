# SPDX-License-Identifier: Apache-2.0
import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from socketserver import TCPServer

import fixtures
from msgspec import structs
from oslotest import base

from monasca_common.persister.status import MemberState, Status
from monasca_common.persister.status_board import StatusBoard
from monasca_common.persister.status_server import status_server, turn_ages, unready_reasons
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

    def test_a_service_whose_loops_turn_lives_and_one_that_waits_for_its_restart_too(self):
        cases = {
            "its loop turned just now": (RUNNING, {"told_ms": 5000, "turned_ms": 4000}, 3.0),
            "its loop hangs, and its status is told": (RUNNING, {"told_ms": 6000, "turned_ms": 1000}, 6.0),
            "it waits for its next start": (RUNNING, {"told_ms": 5000, "turned_ms": 0}, 2.0),
            "it has died, and is replaced": (RUNNING, {"pid": 0}, None),
        }
        for name, (status, changes, expected) in cases.items():
            with self.subTest(name):
                changed = structs.replace(status, **changes)
                self.assertEqual({"metrics-0": expected}, turn_ages([changed], 7000))

    def test_ready_means_running_with_partitions_and_getting_on(self):
        minute_ms = 60_000
        ready = structs.replace(RUNNING, partitions=2, moved_ms=minute_ms, since_ms=0)
        cases = {
            "it works": ({}, minute_ms + 1000, []),
            "it does not get on": ({}, 2 * minute_ms + 1000, ["metrics-0: STALL: 5 messages wait, and none is stored"]),
            "nothing waits": ({"lag": {"metrics/0": 0}}, 9 * minute_ms, []),
            "it has no partitions yet": ({"partitions": 0}, 1000, ["metrics-0: it has no partitions yet"]),
            "others have all partitions": ({"partitions": 0, "lag": {}}, minute_ms, []),
            "the database is away": (
                {"state": MemberState.WAITING_FOR_DATABASE, "reason": "refused"},
                minute_ms,
                ["metrics-0: waiting for the database: refused"],
            ),
        }
        for name, (changes, now_ms, expected) in cases.items():
            with self.subTest(name):
                found = list(unready_reasons([structs.replace(ready, **changes)], now_ms))
                self.assertEqual(expected, [reason.partition(" for 61")[0] for reason in found])

    def connected(self):
        client = socket.create_connection(self.server.server_address, timeout=50)
        self.addCleanup(client.close)
        return client

    def test_a_client_that_goes_away_leaves_no_traceback(self):
        said = self.useFixture(fixtures.StringStream("stderr")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stderr", said))
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
        said.seek(0)
        self.assertEqual("", said.read())

    def test_of_too_many_connections_the_oldest_ends_and_the_newest_is_served(self):
        clients = [self.connected() for _ in range(50)]
        self.assertEqual(503, self.get("/healthz")[0])
        self.assertEqual(b"", clients[0].recv(1))
        clients[1].setblocking(False)
        self.assertRaises(BlockingIOError, clients[1].recv, 1)

    def test_probes_are_answered(self):
        self.assertEqual(503, self.get("/healthz")[0])  # the status was told in 1970
        now_ms = round(time.time() * 1000)
        statuses = {"told_ms": now_ms, "turned_ms": now_ms, "moved_ms": now_ms, "partitions": 1, "pid": 7}
        for status in self.board.statuses():
            self.board.write(structs.replace(status, **statuses))
        self.assertEqual((200, 200), (self.get("/healthz")[0], self.get("/readyz")[0]))
        _, text = self.get("/metrics")
        self.assertIn('monasca_service_live{service="persister"} 1.0', text)
        self.assertIn('monasca_service_ready{service="persister"} 1.0', text)

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
