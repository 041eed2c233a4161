# SPDX-License-Identifier: Apache-2.0
"""The proxy between a client and a node of a few lines that answers each request with what it held."""

import contextlib
import socket
import struct
import threading

from oslotest import base

from monasca_common.devbroker.framing import ApiKey
from monasca_common.devbroker.ports import HOST, free_ports
from monasca_common.devbroker.proxy import KafkaProxy, Route
from monasca_common.devbroker.proxy_rules import Fault

SECONDS = 50


def receive(connection):
    """One frame; None when the connection is closed."""
    length = read(connection, 4)
    return None if length is None else read(connection, struct.unpack(">i", length)[0])


def read(connection, count):
    data = b""
    while len(data) < count:
        try:
            chunk = connection.recv(count - len(data))
        except ConnectionError:
            return None
        if not chunk:
            return None
        data += chunk
    return data


def send(connection, frame):
    connection.sendall(struct.pack(">i", len(frame)) + frame)


def frame(correlation, api_key=ApiKey.PRODUCE, acks=-1, body=b""):
    return struct.pack(">hhih", api_key, 2, correlation, -1) + struct.pack(">h", acks) + body


class EchoingNode:
    """Answers with correlation id and body, in order; nothing to acks=0."""

    def __init__(self):
        self.requests = []
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # close alone does not end an accept that waits
        self._server.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection:
            while (request := receive(connection)) is not None:
                self.requests.append(request)
                if request[10:12] != b"\0\0":
                    send(connection, request[4:8] + request[12:])


class TestProxy(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.node = EchoingNode()
        self.addCleanup(self.node.close)
        self.proxy = KafkaProxy()
        (self.port,) = free_ports(1)
        self.proxy.start([Route(1, self.port, self.node.port)])
        self.addCleanup(self.proxy.stop)
        self.client = self.connect()

    def connect(self):
        client = socket.create_connection((HOST, self.port), SECONDS)
        self.addCleanup(client.close)
        return client

    def answer(self):
        """The correlation id of the next answer; None when the connection is closed."""
        answer = receive(self.client)
        return None if answer is None else struct.unpack(">i", answer[:4])[0]

    def test_without_faults_all_passes_in_order(self):
        for correlation in range(100):
            send(self.client, frame(correlation, body=b"x" * correlation))
        self.assertEqual(list(range(100)), [self.answer() for _ in range(100)])
        self.assertEqual((100, 100), (self.proxy.counters.requests, self.proxy.counters.answers))

    def test_a_large_frame_passes_whole(self):
        body = bytes(range(256)) * 20_000
        send(self.client, frame(1, body=body))
        self.assertEqual(body, receive(self.client)[4:])

    def test_the_right_answer_of_a_pipeline_is_dropped(self):
        self.proxy.add(Fault.drop_answer(ApiKey.PRODUCE, skip=2, times=1))
        for correlation in range(5):
            send(self.client, frame(correlation))
        self.assertEqual([0, 1, 3, 4], [self.answer() for _ in range(4)])
        self.assertEqual(1, self.proxy.counters.answers_lost)

    def test_a_cut_answer_was_carried_out_and_closes_the_connection(self):
        self.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, skip=1, times=1))
        send(self.client, frame(0))
        self.assertEqual(0, self.answer())
        send(self.client, frame(1))
        self.assertIsNone(self.answer())
        self.assertEqual(2, len(self.node.requests))
        self.client = self.connect()
        send(self.client, frame(2))
        self.assertEqual(2, self.answer())

    def test_a_cut_request_was_not_carried_out(self):
        self.proxy.add(Fault.cut_request(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0))
        self.assertIsNone(self.answer())
        self.assertEqual([], self.node.requests)
        self.assertEqual((1, 1), (self.proxy.counters.requests_lost, self.proxy.counters.connections_cut))

    def test_a_dropped_request_leaves_the_connection_open(self):
        self.proxy.add(Fault.drop_request(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0))
        send(self.client, frame(1))
        self.assertEqual(1, self.answer())

    def test_a_held_answer_holds_those_behind_it_and_comes_when_the_fault_is_removed(self):
        held = self.proxy.add(Fault.hold_answer(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0))
        send(self.client, frame(1, ApiKey.FETCH))
        self.client.settimeout(0.05)
        self.assertRaises(TimeoutError, self.client.recv, 1)
        self.client.settimeout(SECONDS)
        self.proxy.remove(held)
        self.assertEqual([0, 1], [self.answer(), self.answer()])

    def test_delays_of_a_pipeline_run_side_by_side(self):
        self.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=0.05))
        for correlation in range(200):
            send(self.client, frame(correlation))
        self.assertEqual(list(range(200)), [self.answer() for _ in range(200)])  # ten seconds, were they added up
        self.assertEqual(200, self.proxy.counters.answers_delayed)

    def test_a_delayed_request_waits_before_the_node(self):
        delay = self.proxy.add(Fault.delay_request(ApiKey.PRODUCE, seconds=600))
        send(self.client, frame(0))
        send(self.client, frame(1))
        self.client.settimeout(0.05)
        self.assertRaises(TimeoutError, self.client.recv, 1)
        self.assertEqual([], self.node.requests)
        self.client.settimeout(SECONDS)
        self.proxy.remove(delay)
        self.assertEqual([0, 1], [self.answer(), self.answer()])

    def test_requests_without_answers_do_not_shift_the_answers_of_others(self):
        self.proxy.add(Fault.drop_answer(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0, acks=0))
        send(self.client, frame(1))
        send(self.client, frame(2))
        self.assertEqual(2, self.answer())

    def test_connections_can_be_cut_by_hand(self):
        send(self.client, frame(0))
        self.answer()
        self.assertEqual(0, self.proxy.cut_connections(node=2))
        self.assertEqual(1, self.proxy.cut_connections())
        self.assertIsNone(self.answer())

    def test_a_node_that_is_down_closes_its_clients(self):
        self.node.close()
        self.client.close()
        self.client = self.connect()
        self.assertIsNone(self.answer())

    def test_what_is_not_kafkas_protocol_is_cut(self):
        self.client.sendall(b"\xff" * 16)
        self.assertIsNone(self.answer())

    def test_stopping_closes_connections_and_is_fine_twice(self):
        send(self.client, frame(0))
        self.answer()
        self.proxy.stop()
        self.proxy.stop()
        self.assertIsNone(self.answer())
