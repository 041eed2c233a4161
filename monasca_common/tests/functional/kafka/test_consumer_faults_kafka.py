# SPDX-License-Identifier: Apache-2.0
"""Consumer faults in production: forks, Ctrl-C, missing permissions, wrong passwords, misuse."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, ClassVar

import fixtures
from oslotest import base

from monasca_common.devbroker.ports import free_ports
from monasca_common.kafka import plugins
from monasca_common.kafka.errors import (
    AuthenticationError,
    AuthorizationError,
    CommitUnknown,
    InCallbackError,
    MessagingError,
    MisuseError,
    TransportError,
)
from monasca_common.kafka.message import Batch, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.tests.checker import each_once
from monasca_common.tests.contracts.scenario import Recorder
from monasca_common.tests.functional.administration import Permission, allow, revoke
from monasca_common.tests.functional.kafka.consumer_case import BUSY_SECONDS, ConsumerCase, all_of
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS

# A separate program, because the test checks the end of a process.
FORKING = """
import os, sys
from monasca_common.kafka.errors import ForkedError
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka import plugins

servers, topic, group = sys.argv[1:]
settings = ConsumerSettings(ConnectionSettings(servers), (topic,), group, topic_check_seconds=0.1)
with plugins.kafka_consumer(settings) as consumer:
    while not consumer.assignment():
        consumer.poll(timeout=0.1)
    consumer.poll(timeout=1.0)
    child = os.fork()
    if child == 0:
        for refused in (consumer.poll, consumer.assignment, lambda: consumer.commit({(topic, 0): 0}), consumer.lag):
            try:
                refused()
            except ForkedError:
                continue
            sys.exit(3)
        sys.exit(0)  # through the end of the `with` and the interpreter's own
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    consumer.poll(timeout=0.5)
    print("child", code, "parent owns", len(consumer.assignment()))
"""


# A header that other clients can write and this library refuses: librdkafka accepts any bytes as a header's name.
WRITING = """
import ctypes, glob, os, sys
import confluent_kafka

servers, topic = (argument.encode() for argument in sys.argv[1:])
packages = os.path.dirname(os.path.dirname(confluent_kafka.__file__))
[library] = glob.glob(os.path.join(packages, "confluent_kafka.libs", "librdkafka*"))
rdkafka = ctypes.CDLL(library)
rdkafka.rd_kafka_conf_new.restype = rdkafka.rd_kafka_new.restype = ctypes.c_void_p
error = ctypes.create_string_buffer(512)
conf = ctypes.c_void_p(rdkafka.rd_kafka_conf_new())
rdkafka.rd_kafka_conf_set(conf, b"bootstrap.servers", servers, error, 512)
client = ctypes.c_void_p(rdkafka.rd_kafka_new(0, conf, error, 512))
TOPIC, VALUE, FLAGS, HEADER, END, COPY = 1, 4, 7, 9, 0, 2
for name in (b"message-id", b"\\xff\\xfe", b"message-id"):
    rdkafka.rd_kafka_producev(
        client, TOPIC, ctypes.c_char_p(topic), FLAGS, COPY, VALUE, ctypes.c_char_p(b"v"), ctypes.c_size_t(1),
        HEADER, ctypes.c_char_p(name), ctypes.c_char_p(b"x"), ctypes.c_ssize_t(1), END,
    )
sys.exit(rdkafka.rd_kafka_flush(client, 10000))
"""

# Except for the warning, the message behaves as if it had no headers, however often they are read.
READING = """
import sys
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka import plugins

servers, topic, group = sys.argv[1:]
settings = ConsumerSettings(ConnectionSettings(servers), (topic,), group)
with plugins.kafka_consumer(settings) as consumer:
    ids = []
    while len(ids) < 3:
        batch = consumer.poll()
        for _ in range(50):
            again = [message.message_id.decode().replace(topic, "topic") for message in batch]
        assert [len(headers) for part in batch.partitions for headers in part.headers] == [
            len(message.headers) for message in batch
        ]
        ids += again
print(ids)
"""


class TestForeignMessages(ConsumerCase):
    def run_program(self, program, *arguments):
        command = [sys.executable, "-c", textwrap.dedent(program), self.cluster.bootstrap_servers, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    # Rule 21
    def test_a_header_name_that_is_not_text_crashes_no_reader(self):
        topic = self.fixture.topic()
        self.assertEqual(0, self.run_program(WRITING, topic).returncode)
        run = self.run_program(READING, topic, self.group)
        self.assertEqual("['x', 'topic/0/1', 'x']\n", run.stdout, f"{run.returncode} {run.stderr}")


class InterruptsFromWithin(threading.Thread):
    """Sends Ctrl-C shortly after a consumer has begun to poll, whenever that is; an earlier Ctrl-C would end the
    test."""

    def __init__(self, consumer):
        super().__init__(daemon=True)
        self._begun = threading.Event()
        poll = consumer._transport.poll

        def noted(*arguments, **named):
            self._begun.set()
            return poll(*arguments, **named)

        consumer._transport.poll = noted
        self.start()

    def run(self):
        self._begun.wait()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)


class TestProcesses(ConsumerCase):
    # Rule 10
    def test_a_child_refuses_the_consumer_and_exits_cleanly(self):
        topic = self.fixture.topic()
        servers = self.cluster.bootstrap_servers
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(FORKING), servers, topic, self.group],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual("child 0 parent owns 1\n", run.stdout, run.stderr)

    def test_an_interrupt_ends_a_poll_and_loses_no_message(self):
        topic = self.fixture.topic()
        consumer = self.consumer(topic)
        self.poll_until(consumer, consumer.assignment)
        interrupts = InterruptsFromWithin(consumer)
        begun = time.monotonic()
        self.assertRaises(KeyboardInterrupt, consumer.poll, timeout=PATIENCE_SECONDS)
        self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS / 2)
        interrupts.join()
        self.put(topic, 3)
        self.assertEqual(3, len(self.read(consumer, 3)))

    # Rule 15
    def test_interrupts_at_any_moment_of_a_poll_lose_nothing(self):
        topic = self.fixture.topic(partitions=2)
        self.put(topic, 5000, partitions=2)
        consumer = self.consumer(topic)
        values: list[bytes | None] = []
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        deadline = time.monotonic() + PATIENCE_SECONDS
        interrupts = polls = 0
        while [consumer.position(partition) for partition in all_of(topic, 2)] != [2500, 2500]:
            self.assertLess(time.monotonic(), deadline, f"{len(values)} messages were read in time")
            polls += 1
            batch = Batch()
            try:
                # Every second poll is interrupted, starting with the first, in which the consumer joins the group.
                signal.setitimer(signal.ITIMER_REAL, 0.001 * (polls % 7) if polls % 2 else 0)
                batch = consumer.poll(100, timeout=1.0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            values += [message.value for message in batch]
        signal.setitimer(signal.ITIMER_REAL, 0)
        with each_once():
            self.assertEqual(set(range(5000)), {int(value or b"") for value in values})
        self.assertGreater(interrupts, 0)


class TestUnavailableBrokers(base.BaseTestCase):
    def test_a_retrying_client_logs_the_error_once_and_not_on_standard_error(self):
        servers = f"127.0.0.1:{free_ports(1)[0]}"
        settings = ConsumerSettings(ConnectionSettings(servers), ("away",), "test-group", topic_check_seconds=0.0)
        log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))
        consumer = plugins.kafka_consumer(settings)
        self.addCleanup(consumer.close, 0)

        def error_text():
            lines = [line for line in log.output.splitlines() if servers in line]
            starts = len([line for line in lines if line.startswith("FAIL")])
            return starts, len([line for line in lines if "_TRANSPORT" in line]), lines

        def poll_until(condition, seconds):
            deadline = time.monotonic() + seconds
            while not condition() and time.monotonic() < deadline:
                consumer.poll(timeout=0.1)

        poll_until(lambda: all(error_text()[:2]), PATIENCE_SECONDS)
        poll_until(lambda: False, 2)  # time in which the consumer retries
        *counts, lines = error_text()
        self.assertEqual([1, 1], counts, lines)


class TestMisuse(ConsumerCase):
    def test_a_listener_cannot_poll_or_close(self):
        topic = self.fixture.topic()
        refused: list[Exception] = []

        class Listener(Recorder):
            def assigned(self, partitions):
                for use in (consumer.poll, consumer.close, consumer.seek_to_end):
                    try:
                        use()
                    except InCallbackError as error:
                        refused.append(error)

        consumer = self.consumer(topic, listener=Listener())
        self.poll_until(consumer, consumer.assignment)
        self.assertEqual(3, len(refused))

    def test_a_deadline_in_the_past_does_not_wait_indefinitely(self):
        consumer = self.consumer(self.fixture.topic())
        self.poll_until(consumer, consumer.assignment)
        begun = time.monotonic()
        self.assertEqual(0, len(consumer.poll(timeout=-1)))
        self.assertLess(time.monotonic() - begun, BUSY_SECONDS)

    # Rule 21
    def test_no_error_of_the_client_library_escapes(self):
        topic = self.fixture.topic()
        consumer = self.consumer(topic)
        self.poll_until(consumer, consumer.assignment)
        owned = TopicPartition(topic, 0)
        wrong = [
            lambda: consumer.poll(0),
            lambda: consumer.poll(10**9),
            lambda: consumer.poll(timeout=-1),
            lambda: consumer.seek(owned, 2**63),
            lambda: consumer.seek(TopicPartition("no/such topic", 0), 1),
            lambda: consumer.seek_to_time({owned: 2**63}),
            lambda: consumer.seek_to_time({TopicPartition("surrogate\udc80", 0): 1}),
            lambda: consumer.commit({owned: -5}),
            lambda: consumer.commit({owned: 10**12}, timeout=-1),
            lambda: consumer.commit({TopicPartition("no/such topic", 0): 1}),
            lambda: consumer.pause([TopicPartition("no/such topic", 0)]),
            lambda: consumer.partition_count(topic, 0),
            lambda: consumer.partition_count(topic, -1),
            lambda: consumer.topic_ids(-1),
            lambda: consumer.lag(-1),
            lambda: consumer.close(-1),
        ]
        names = ["", "nul\0", "surrogate\udc80", "no/such topic", "x" * 300]
        for name in names:
            self.assertRaises(TransportError, consumer.partition_count, name, 1)
            self.assertRaises(TransportError, consumer.resolve_starts, [TopicPartition(name, 0)], 1)
        for call in wrong:
            with contextlib.suppress(MessagingError):
                call()

    def test_only_owned_partitions_can_be_sought(self):
        consumer = self.consumer(self.fixture.topic())
        self.assertRaises(MisuseError, consumer.seek, TopicPartition("other", 0), 1)


class TestPermissions(ConsumerCase):
    cluster_settings: ClassVar[dict[str, Any]] = {"sasl": True, "acl": True}

    def setUp(self):
        super().setUp()
        self.topic = self.fixture.topic()
        self.put(self.topic, 3)

    def errors_of(self, consumer, kind, *, seconds=3.0):
        """Return the first error of this kind, the errors after it, and the number of polls."""
        errors, polls = [], 0
        while not any(isinstance(error, kind) for error in errors):
            errors = self.errors_until(consumer)
        first = next(error for error in errors if isinstance(error, kind))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            errors += consumer.poll(timeout=0.5).errors
            polls += 1
        return first, errors, polls

    def allow(self, *resources):
        permissions = [Permission("User:monasca", operation, kind, name) for operation, kind, name in resources]
        allow(self.admin, *permissions)
        self.addCleanup(revoke, self.admin, *permissions)

    @periodic("a variant of a denied topic")
    def test_a_denied_group_is_reported_and_does_not_spin(self):
        self.allow(("read", "topic", self.topic), ("describe", "topic", self.topic))
        first, errors, polls = self.errors_of(self.consumer(self.topic, user="monasca"), AuthorizationError)
        self.assertIn("GROUP_AUTHORIZATION_FAILED", str(first))
        self.assertLess(polls, 40)
        self.assertLessEqual(len(errors), 5)

    # Rule 16
    def test_a_denied_topic_is_reported_and_does_not_spin(self):
        self.allow(("read", "group", self.group))
        _, errors, polls = self.errors_of(self.consumer(self.topic, user="monasca"), AuthorizationError)
        self.assertLess(polls, 40)
        self.assertLessEqual(len(errors), 5)

    @periodic("a variant of a denied topic")
    def test_a_topic_denied_while_reading_is_reported(self):
        self.allow(("read", "group", self.group))
        read = Permission("User:monasca", "read", "topic", self.topic)
        describe = Permission("User:monasca", "describe", "topic", self.topic)
        allow(self.admin, read, describe)
        consumer = self.consumer(self.topic, user="monasca")
        self.read(consumer, 3)
        revoke(self.admin, read, describe)
        _, _, polls = self.errors_of(consumer, AuthorizationError)
        self.assertLess(polls, 40)

    @periodic("a variant of a denied topic")
    def test_a_commit_of_a_denied_group_does_not_delay_close(self):
        self.allow(("read", "topic", self.topic), ("describe", "topic", self.topic))
        partition = TopicPartition(self.topic, 0)
        listener = Recorder(starts={partition: 0})
        consumer = self.consumer(self.topic, partitions=[partition], listener=listener, user="monasca")
        self.poll_until(consumer, lambda: consumer.position(partition) == 3)
        result = consumer.commit({partition: 3}, timeout=1.0)[partition]
        self.assertIsInstance(result.error, (CommitUnknown, AuthorizationError))
        self.put(self.topic, 1, first=3)
        self.poll_until(consumer, lambda: consumer.position(partition) == 4)
        begun = time.monotonic()
        consumer.close(1.0)
        self.assertLess(time.monotonic() - begun, 2.0 + BUSY_SECONDS)

    def test_a_bad_password_is_reported(self):
        settings = self.settings(self.topic)
        security = {**settings.connection.security, "sasl.password": "wrong, $and such"}
        connection = type(settings.connection)(settings.connection.bootstrap_servers, security=security)
        consumer = self.consumer(self.topic, connection=connection)
        _, errors, polls = self.errors_of(consumer, AuthenticationError)
        self.assertIsNotNone(consumer.health().last_client_error)
        self.assertNotIn("$and such", str(errors))
        self.assertLess(polls, 40)
