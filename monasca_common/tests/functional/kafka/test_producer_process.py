# SPDX-License-Identifier: Apache-2.0
"""A producer and its process: forks, signals, threads, green threads, callbacks, and exit."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import fixtures

from monasca_common.kafka.errors import DeliveryAbandoned, DeliveryRefused, ForkedError, MessagingError, MisuseError
from monasca_common.kafka.message import Record
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.producer_case import BUSY_SECONDS, SECONDS, ProducerCase
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

CLOSE_GRACE_SECONDS = 1.0

OPEN = """
import sys
from monasca_common.kafka import plugins
from monasca_common.kafka.settings import ConnectionSettings, ProducerSettings
servers, topic = sys.argv[1:]
def producer():
    return plugins.kafka_producer(ProducerSettings(ConnectionSettings(servers), linger_ms=5))
"""

INTERRUPTED = """
producer = producer()
producer.publish(topic, [b"warm"], timeout=30).raise_for_undelivered()
print("ready", flush=True)
sys.stdin.readline()
try:
    print("publishing", flush=True)
    producer.publish(topic, [b"1", b"2"], timeout=60)
    print("not interrupted", flush=True)
except KeyboardInterrupt:
    producer.send(topic, b"3")
    report = producer.close(0.2)
    print(f"interrupted {len(report.unknown)}", flush=True)
"""

PATCHED = """
from monasca_common.kafka.errors import ConfigurationError
try:
    producer()
except ConfigurationError as error:
    print(error)
"""


FORKING = """
import os
from monasca_common.kafka.errors import ForkedError
producer = producer()
report = producer.publish(topic, [b"before"], timeout=30)
producer.send(topic, b"on its way")
calls = [
    lambda: producer.publish(topic, [b"child"]),
    lambda: producer.send(topic, b"child"),
    lambda: producer.retry(report),
    lambda: producer.flush(1),
    lambda: producer.close(1),
    producer.transaction,
]
pid = os.fork()
if pid == 0:
    refused = 0
    for call in calls{calls}:
        try:
            call()
        except ForkedError:
            refused += 1
    sys.exit(10 + refused)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
producer.publish(topic, [b"after"], timeout=30).raise_for_undelivered()
print("parent", producer.close(30).ok, flush=True)
"""
CALLERS = 8
BULKS = 20
LONG_MS = 300_000  # longer than a publish waits


class ProcessCase(ProducerCase):
    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()

    def warm_producer(self, **changes):
        producer = self.producer(**changes)
        producer.publish(self.topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        return producer

    def program(self, *parts, stdin=None):
        """Start a Python program with the producer that `OPEN` opens."""
        command = [sys.executable, "-c", "".join(parts), self.cluster.bootstrap_servers, self.topic]
        process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process


class TestFork(ProcessCase):
    def assert_forks(self, calls, code):
        process = self.program(OPEN, FORKING.replace("{calls}", calls))
        output, errors = process.communicate(timeout=SECONDS)
        self.assertEqual(["child", str(code), "parent", "True"], output.split(), errors)
        with each_once():
            self.assertEqual(
                [b"after", b"before", b"on its way"], sorted(record.value for record in self.log(self.topic))
            )

    # Rule 10
    def test_a_child_refuses_every_call_and_exits_cleanly_while_the_parent_continues(self):
        self.assert_forks("", 16)

    def test_a_child_that_never_uses_the_producer_exits_cleanly(self):
        self.assert_forks("[:0]", 10)

    def test_a_child_of_a_running_test_refuses_calls(self):
        producer = self.warm_producer()

        def in_child():
            try:
                producer.send(self.topic, b"child")
            except ForkedError:
                return 0
            return 2

        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = in_child()
            finally:
                os._exit(code)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        producer.publish(self.topic, [b"parent"], timeout=SECONDS).raise_for_undelivered()


class TestGreenThreads(ProcessCase):
    def assert_refused(self, patch, name):
        output, errors = self.program(patch, OPEN, PATCHED).communicate(timeout=SECONDS)
        self.assertIn(name, output, errors)

    # Rule 10
    def test_a_process_patched_by_gevent_is_refused(self):
        self.assert_refused("from gevent import monkey; monkey.patch_all()\n", "gevent")

    def test_a_process_patched_by_eventlet_is_refused(self):
        self.assert_refused("import eventlet; eventlet.monkey_patch()\n", "eventlet")


class TestInterrupt(ProcessCase):
    def test_ctrl_c_ends_a_publish_immediately_and_close_reports_the_remaining_messages(self):
        process = self.program(OPEN, INTERRUPTED, stdin=subprocess.PIPE)
        self.assertEqual("ready\n", process.stdout.readline())
        held = self.fixture.proxy.add(Fault.hold_answer(ApiKey.PRODUCE))
        process.stdin.write("\n")
        process.stdin.flush()
        self.assertEqual("publishing\n", process.stdout.readline())
        self.wait_until(lambda: held.taken)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        line = process.stdout.readline()
        self.assertLess(time.monotonic() - begun, 0.2 + CLOSE_GRACE_SECONDS + BUSY_SECONDS)
        self.assertEqual("interrupted 3\n", line)
        self.fixture.proxy.clear()
        self.assertEqual(0, process.wait(SECONDS))


class TestEnd(ProcessCase):
    # Rule 9
    def test_a_close_exceeds_its_timeout_by_at_most_a_second_with_a_frozen_broker(self):
        producer = self.warm_producer()
        self.cluster.node(1).freeze()
        for number in range(1000):
            producer.send(self.topic, b"%d" % number)
        begun = time.monotonic()
        report = producer.close(0.5)
        self.assertLess(time.monotonic() - begun, 0.5 + CLOSE_GRACE_SECONDS + BUSY_SECONDS)
        self.assertEqual((0, 0, 1000), (report.delivered_count, len(report.failed), len(report.unknown)))
        self.assertEqual({DeliveryAbandoned}, {type(delivery.error) for delivery in report.unknown})

    # Rule 9
    def test_a_close_is_bounded_with_a_topic_whose_limit_is_unknown(self):
        producer = self.warm_producer()
        other = self.fixture.topic()
        self.cluster.node(1).freeze()
        producer.send(other, b"1")
        begun = time.monotonic()
        report = producer.close(0.5)
        self.assertLess(time.monotonic() - begun, 0.5 + CLOSE_GRACE_SECONDS + BUSY_SECONDS)
        self.assertEqual(1, len(report.failed))

    def test_a_program_that_forgets_to_close_ends_nevertheless(self):
        process = self.program(OPEN, "producer = producer()\nproducer.publish(topic, [b'1'], timeout=30)\n")
        _, errors = process.communicate(timeout=SECONDS)
        self.assertEqual((0, ""), (process.returncode, errors))


class TestCallbacks(ProcessCase):
    # Rule 7
    def test_a_callback_that_raises_is_logged_and_counted_and_other_callbacks_continue(self):
        log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))
        producer = self.warm_producer()
        received = []

        def broken(delivery):
            raise RuntimeError("of the test's own")

        for number in range(6):
            producer.send(self.topic, b"%d" % number, on_delivery=received.append if number % 2 else broken)
        self.assertEqual(6, producer.flush(SECONDS).delivered_count)
        self.wait_until(lambda: producer.health().failed_listeners == 3 and len(received) == 3)
        self.wait_until(lambda: log.output.count("RuntimeError: of the test's own") == 3)

    def test_a_close_with_time_left_waits_for_messages_in_flight(self):
        producer = self.warm_producer()
        received = []

        def slow(delivery):
            time.sleep(0.05)  # the injected fault
            received.append(delivery)

        for number in range(20):
            producer.send(self.topic, b"%d" % number, on_delivery=slow)
        self.assertEqual((20, 20), (producer.close(SECONDS).delivered_count, len(received)))

    def test_a_callback_can_send(self):
        producer = self.warm_producer()
        done = threading.Event()
        producer.send(
            self.topic,
            b"1",
            on_delivery=lambda _: producer.send(self.topic, b"2", on_delivery=lambda _: done.set()),
        )
        self.assertTrue(done.wait(SECONDS))
        with each_once():
            self.assertEqual([b"warm", b"1", b"2"], [record.value for record in self.log(self.topic)])


class TestForeignErrors(ProcessCase):
    """Every error of a producer is an error of this library."""

    # Rule 21
    def test_no_error_of_the_client_library_escapes(self):
        producer = self.warm_producer()
        wrong = [
            lambda: producer.publish(self.topic, [b"1", "text"]),
            lambda: producer.publish(self.topic, b"1"),
            lambda: producer.publish(None, [b"1"]),
            lambda: producer.publish("no/such topic", [b"1"], timeout=0.1),
            lambda: producer.publish("x" * 300, [b"1"], timeout=0.1),
            lambda: producer.publish("no-such-topic", [b"1"], timeout=0.1),
            lambda: producer.publish(self.topic, [Record(b"1", partition=99)], timeout=0.1),
            lambda: producer.publish(self.topic, [Record(b"1", partition=-5)], timeout=0.1),
            lambda: producer.publish(self.topic, [Record(b"1", timestamp_ms=-5)], timeout=0.1),
            lambda: producer.publish(self.topic, [Record(b"1", headers=(("name", "text"),))], timeout=0.1),
            lambda: producer.publish(self.topic, [Record(b"1", headers=((b"name", b"v"),))], timeout=0.1),
            lambda: producer.send(self.topic, 1),
            lambda: producer.send(self.topic, b"1", key="text"),
            lambda: producer.send("no-such-topic", b"1"),
            lambda: producer.flush(-1),
            lambda: producer.close(-1),
        ]
        for call in wrong:
            try:
                call()
            except MessagingError as error:
                self.assertIsInstance(error, MisuseError)

    def test_an_invalid_topic_name_is_reported_immediately(self):
        producer = self.warm_producer()
        for name in ("", "nul\0", "surrogate\udc80"):
            [delivery] = producer.publish(name, [b"1"], timeout=SECONDS).failed
            self.assertIsInstance(delivery.error, DeliveryRefused)

    def test_the_report_of_a_bulk_is_complete_if_some_messages_cannot_be_sent(self):
        producer = self.warm_producer()
        report = producer.publish(self.topic, [b"1", Record(b"2", partition=99), b"3"], timeout=SECONDS)
        self.assertEqual((2, [1]), (report.delivered_count, [delivery.index for delivery in report.failed]))
        self.assertNotIsInstance(report.failed[0].error, confluent_kafka.KafkaException)


class TestConcurrentCallers(ProducerCase):
    def requests_for(self, bulks):
        """Publish ``bulks`` messages on each thread; return the number of produce requests."""
        topic = self.fixture.topic()
        producer = self.producer(linger_ms=LONG_MS)
        producer.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        counted = self.fixture.proxy.add(Fault.delay_request(ApiKey.PRODUCE, seconds=0.0))

        def publish(thread):
            return [producer.publish(topic, [b"%d" % thread], timeout=SECONDS).ok for _ in range(bulks)]

        with ThreadPoolExecutor(CALLERS) as threads:
            outcomes = [ok for each in threads.map(publish, range(CALLERS)) for ok in each]
        self.assertEqual([True] * CALLERS * bulks, outcomes)
        self.assertEqual(CALLERS * bulks + 1, len(self.log(topic)))
        return counted.taken

    # Rule 7
    def test_linger_delays_no_caller(self):
        self.requests_for(bulks=1)

    @periodic("a measurement of batching")
    def test_callers_that_return_together_share_requests(self):
        self.assertLess(self.requests_for(BULKS), CALLERS * BULKS / 2)
