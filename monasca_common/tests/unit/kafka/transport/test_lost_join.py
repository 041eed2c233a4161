# SPDX-License-Identifier: Apache-2.0
import contextlib
import socketserver
import struct
import threading
from unittest import mock

from oslotest import base

from monasca_common.kafka import open_consumer
from monasca_common.kafka.errors import AuthorizationError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka.transport import librdkafka_options, native
from monasca_common.tests.waiting import Waiting

METADATA, FIND_COORDINATOR, JOIN_GROUP, API_VERSIONS = 3, 10, 11, 18
# The newest version of each API; without the other group APIs, librdkafka does not join.
NEWEST = {METADATA: 4, 8: 2, 9: 1, FIND_COORDINATOR: 0, JOIN_GROUP: 2, 12: 0, 13: 0, 14: 0, API_VERSIONS: 0}
UNSUPPORTED_VERSION, GROUP_AUTHORIZATION_FAILED = 35, 30
NODE = 1
SLOW_SECONDS = 1.0


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


class RestartingBroker(socketserver.ThreadingTCPServer):
    """A broker whose first metadata response contains no broker, as while a cluster restarts. Its first connection
    answers later metadata requests slowly, and never after another connection has reported a broker. It refuses each
    join."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Connection)
        self.host, self.port = self.server_address
        self.address = text(self.host) + struct.pack(">i", self.port)
        self.first_connection = threading.Semaphore()
        self.has_reported = threading.Event()


class Connection(socketserver.StreamRequestHandler):
    def handle(self):
        self.is_first, self.metadata_requests = self.server.first_connection.acquire(blocking=False), 0
        while size := self.rfile.read(4):
            request = self.rfile.read(*struct.unpack(">i", size))
            answer = self.answer(*struct.unpack_from(">hh", request), request)
            if answer is not None:
                self.wfile.write(struct.pack(">i", len(answer) + 4) + request[4:8] + answer)

    def answer(self, api, version, request):
        if api == API_VERSIONS:
            versions = b"".join(struct.pack(">hhh", each, 0, newest) for each, newest in NEWEST.items())
            return struct.pack(">hi", UNSUPPORTED_VERSION if version else 0, len(NEWEST)) + versions
        if api == FIND_COORDINATOR:
            return struct.pack(">hi", 0, NODE) + self.server.address
        if api == JOIN_GROUP:
            return struct.pack(">ihi", 0, GROUP_AUTHORIZATION_FAILED, -1) + text("") * 3 + struct.pack(">i", 0)
        self.metadata_requests += 1
        if not self.is_first:
            self.server.has_reported.set()
        elif self.metadata_requests > 1 and self.server.has_reported.wait(SLOW_SECONDS):
            return None
        node = struct.pack(">i", NODE) + self.server.address + struct.pack(">h", -1)  # without a rack
        is_empty = self.is_first and self.metadata_requests == 1
        nodes = struct.pack(">i", 0) if is_empty else struct.pack(">i", 1) + node
        partition = struct.pack(">hiiiiii", 0, 0, NODE, 1, NODE, 1, NODE)  # one replica, which is in sync
        topic = struct.pack(">h", 0) + text("t") + struct.pack(">?i", False, 1) + partition
        topics = struct.pack(">i", 1) + topic if text("t") in request else struct.pack(">i", 0)
        return struct.pack(">i", 0) + nodes + text("cluster") + struct.pack(">i", NODE) + topics


class TestLostJoin(Waiting, base.BaseTestCase):
    """The coordinator's metadata contain a broker, so librdkafka drops its bootstrap servers with their requests."""

    def joins(self, driver):
        errors = []
        with contextlib.ExitStack() as stack:
            broker = stack.enter_context(RestartingBroker())
            threading.Thread(target=broker.serve_forever, daemon=True).start()
            stack.callback(broker.shutdown)
            stack.enter_context(mock.patch.object(librdkafka_options, "_METADATA_REFRESH_MS", 200))
            connection = ConnectionSettings(f"{broker.host}:{broker.port}", driver=driver)
            settings = ConsumerSettings(connection, ("t",), "g", topic_check_seconds=0.0)
            consumer = stack.enter_context(open_consumer(settings))
            self.wait_until(lambda: errors.extend(consumer.poll(timeout=0.1).errors) or errors, "a join")
        self.assertIsInstance(errors[0], AuthorizationError)

    def test_the_native_client_joins_although_the_request_for_the_topics_was_lost(self):
        if native.reason() is not None:
            self.skipTest(native.reason())  # TestAvailability in test_native fails
        self.joins("native")

    def test_the_client_of_confluent_kafka_joins_although_the_request_for_the_topics_was_lost(self):
        self.joins("confluent")
