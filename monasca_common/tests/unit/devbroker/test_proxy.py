# SPDX-License-Identifier: Apache-2.0
"""The proxy between a client and a small node that returns the body of each request."""

import contextlib
import socket
import struct
import threading

from oslotest import base

from monasca_common.devbroker.ports import HOST, free_ports
from monasca_common.tests.kafka_proxy.faults import Fault
from monasca_common.tests.kafka_proxy.framing import ApiKey, correlation_id, parse_request, without_brokers
from monasca_common.tests.kafka_proxy.proxy import KafkaProxy

SECONDS = 50


def receive(connection):
    """Return one frame, or ``None`` if the connection is closed."""
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


def frame(correlation, api_key=ApiKey.PRODUCE, body=b""):
    return struct.pack(">hhi", api_key, 2, correlation) + body


class EchoingNode:
    """Responds to each request in order with its correlation id and body."""

    def __init__(self):
        self.requests = []
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # a close does not end a waiting accept by itself
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
                send(connection, request[4:])


class TestProxy(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.node = EchoingNode()
        self.addCleanup(self.node.close)
        self.proxy = KafkaProxy()
        (self.port,) = free_ports(1)
        self.proxy.start({self.port: self.node.port})
        self.addCleanup(self.proxy.stop)
        self.client = self.connect()

    def connect(self):
        client = socket.create_connection((HOST, self.port), SECONDS)
        self.addCleanup(client.close)
        return client

    def answer(self):
        """Return the correlation id of the next response, or ``None`` if the connection is closed."""
        answer = receive(self.client)
        return None if answer is None else struct.unpack(">i", answer[:4])[0]

    def test_without_faults_all_requests_pass_in_order(self):
        for correlation in range(100):
            send(self.client, frame(correlation, body=b"x" * correlation))
        self.assertEqual(list(range(100)), [self.answer() for _ in range(100)])

    def test_a_large_frame_passes_unchanged(self):
        body = bytes(range(256)) * 20_000
        send(self.client, frame(1, body=body))
        self.assertEqual(body, receive(self.client)[4:])

    def test_the_selected_response_of_a_pipeline_is_dropped(self):
        fault = self.proxy.add(Fault.drop_answer(where=lambda request: request.correlation_id == 2))
        for correlation in range(5):
            send(self.client, frame(correlation))
        self.assertEqual([0, 1, 3, 4], [self.answer() for _ in range(4)])
        self.assertEqual(1, fault.taken)

    def test_the_request_of_a_cut_response_is_executed_and_the_connection_closes(self):
        self.proxy.add(Fault.cut_answer(ApiKey.PRODUCE, times=1))
        send(self.client, frame(1))
        self.assertIsNone(self.answer())
        self.assertEqual(1, len(self.node.requests))
        self.client = self.connect()
        send(self.client, frame(2))
        self.assertEqual(2, self.answer())

    def test_a_cut_request_is_not_executed(self):
        self.proxy.add(Fault.cut_request(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0))
        self.assertIsNone(self.answer())
        self.assertEqual([], self.node.requests)

    def test_a_dropped_request_leaves_the_connection_open(self):
        self.proxy.add(Fault.drop_request(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0))
        send(self.client, frame(1))
        self.assertEqual(1, self.answer())

    def test_a_held_response_delays_later_responses_until_the_fault_is_removed(self):
        held = self.proxy.add(Fault.hold_answer(ApiKey.PRODUCE, times=1))
        send(self.client, frame(0))
        send(self.client, frame(1, ApiKey.FETCH))
        self.client.settimeout(0.05)
        self.assertRaises(TimeoutError, self.client.recv, 1)
        self.client.settimeout(SECONDS)
        self.proxy.remove(held)
        self.assertEqual([0, 1], [self.answer(), self.answer()])

    def test_delays_of_a_pipeline_overlap(self):
        fault = self.proxy.add(Fault.delay_answer(ApiKey.PRODUCE, seconds=0.05))
        for correlation in range(200):
            send(self.client, frame(correlation))
        self.assertEqual(list(range(200)), [self.answer() for _ in range(200)])  # 10 s if the delays were added up
        self.assertEqual(200, fault.taken)

    def test_a_delayed_request_does_not_reach_the_node(self):
        delay = self.proxy.add(Fault.delay_request(ApiKey.PRODUCE, seconds=600))
        send(self.client, frame(0))
        send(self.client, frame(1))
        self.client.settimeout(0.05)
        self.assertRaises(TimeoutError, self.client.recv, 1)
        self.assertEqual([], self.node.requests)
        self.client.settimeout(SECONDS)
        self.proxy.remove(delay)
        self.assertEqual([0, 1], [self.answer(), self.answer()])

    def test_the_first_matching_fault_affects_a_request(self):
        first, second = self.proxy.add(Fault.drop_answer(times=1)), self.proxy.add(Fault.cut_answer())
        send(self.client, frame(0))
        send(self.client, frame(1))
        self.assertIsNone(self.answer())
        self.assertEqual((1, 1), (first.taken, second.taken))

    def test_removed_faults_affect_no_request(self):
        first, second = self.proxy.add(Fault.cut_answer()), self.proxy.add(Fault.cut_answer())
        self.proxy.remove(first)
        send(self.client, frame(0))
        self.assertIsNone(self.answer())
        self.proxy.clear()
        self.client = self.connect()
        send(self.client, frame(1))
        self.assertEqual(1, self.answer())
        self.assertEqual((0, 1), (first.taken, second.taken))

    def test_cut_connections_closes_all_connections(self):
        send(self.client, frame(0))
        self.answer()
        self.assertEqual(1, self.proxy.cut_connections())
        self.assertIsNone(self.answer())

    def test_a_connection_closes_if_the_node_is_down(self):
        self.node.close()
        self.client.close()
        self.client = self.connect()
        self.assertIsNone(self.answer())

    def test_a_connection_with_another_protocol_is_closed(self):
        self.client.sendall(b"\xff" * 16)
        self.assertIsNone(self.answer())

    def test_stop_closes_connections_and_may_be_called_again(self):
        send(self.client, frame(0))
        self.answer()
        self.proxy.stop()
        self.proxy.stop()
        self.assertIsNone(self.answer())


def request(api_key=ApiKey.PRODUCE, body=b""):
    return parse_request(frame(5, api_key, body))


def taken(fault, *requests):
    return [fault.takes(each) for each in requests]


class TestRequestsOfAFault(base.BaseTestCase):
    def test_a_fault_affects_requests_with_one_of_its_api_keys(self):
        fault = Fault.drop_answer(ApiKey.PRODUCE, ApiKey.FETCH)
        requests = [request(key) for key in (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.FETCH)]
        self.assertEqual([True, False, True], taken(fault, *requests))

    def test_without_api_keys_a_fault_affects_all_requests(self):
        self.assertEqual([True, True], taken(Fault.cut_request(), request(), request(ApiKey.METADATA)))

    def test_a_fault_affects_at_most_times_requests(self):
        self.assertEqual([True, True, False], taken(Fault.cut_answer(times=2), *[request()] * 3))

    def test_a_fault_affects_requests_that_a_predicate_selects(self):
        fault = Fault.cut_answer(where=lambda each: b"orders" in each.frame)
        self.assertEqual([False, True], taken(fault, request(body=b"other"), request(body=b"orders")))

    def test_the_same_seed_selects_the_same_requests(self):
        requests = [request()] * 1000
        first = taken(Fault.drop_answer(probability=0.3, seed=7), *requests)
        self.assertEqual(first, taken(Fault.drop_answer(probability=0.3, seed=7), *requests))
        self.assertNotEqual(first, taken(Fault.drop_answer(probability=0.3, seed=8), *requests))
        self.assertTrue(250 < sum(first) < 350)

    def test_a_fault_counts_its_requests(self):
        fault = Fault.drop_answer(times=2)
        taken(fault, *[request()] * 5)
        self.assertEqual(2, fault.taken)


class TestFrames(base.BaseTestCase):
    def test_metadata_without_brokers_keeps_its_topics(self):
        start, topics = struct.pack(">iBi", 7, 0, 0), b"\x00\x01\x02"
        host = b"h" * 200
        brokers = struct.pack(">i", 1) + b"\xc9\x01" + host + struct.pack(">i", 9092) + b"\x00\x00"  # without a rack
        brokers += struct.pack(">i", 2) + b"\x03ok" + struct.pack(">i", 9093) + b"\x05rack\x00"
        self.assertEqual(start + b"\x01" + topics, without_brokers(start + b"\x03" + brokers + topics))

    def test_the_header_of_a_request_is_parsed(self):
        found = parse_request(frame(99, ApiKey.END_TXN))
        self.assertEqual((ApiKey.END_TXN, 99), (found.api_key, found.correlation_id))

    def test_a_response_begins_with_the_id_of_its_request(self):
        self.assertEqual(41, correlation_id(struct.pack(">i", 41) + b"rest"))
