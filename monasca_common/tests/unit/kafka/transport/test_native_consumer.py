# SPDX-License-Identifier: Apache-2.0
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import fixtures
from confluent_kafka import Producer
from oslotest import base

from monasca_common.kafka.errors import ClosedError, ConfigurationError, RetriableError, TransportError
from monasca_common.kafka.message import COLUMNS, PartitionBatch, TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka.transport import native
from monasca_common.kafka.transport.base import BEGINNING
from monasca_common.tests.mock_broker import MockBroker

NO_BROKER = "127.0.0.1:1"
PATIENCE_SECONDS = 30.0
HEADERS = [("message-id", b"own"), ("empty", b""), ("null", None), ("null", b"again"), ("\u00e9", b"\0")]


class NativeConsumerCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        if native.reason() is not None:
            self.skipTest(native.reason())  # TestAvailability in test_native fails

    def open(self, servers=NO_BROKER, **changes):
        from monasca_common.kafka.transport.native.consumer import NativeConsumer

        fields = {"topics": ("t",), "group_id": self.id()[-40:], "topic_check_seconds": 0.0}
        consumer = NativeConsumer(ConsumerSettings(ConnectionSettings(servers), **{**fields, **changes}))
        self.addCleanup(self.close, consumer)
        return consumer

    def client_error(self):
        from monasca_common.kafka.transport.native import _librdkafka

        return _librdkafka.Error

    def close(self, consumer):
        with contextlib.suppress(ClosedError):  # the test closes it
            consumer.close()

    def interrupt_after(self, seconds):
        def interrupt(*_):
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, seconds)


class TestWithoutBroker(NativeConsumerCase):
    def test_a_close_that_waits_for_a_call_ends_if_the_client_is_abandoned_in_the_meantime(self):
        program = """
import threading, time
from monasca_common.kafka.transport.native import _librdkafka
consumer = _librdkafka.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": "0"}, print)
def ask():
    try:
        consumer.committed([("t", 0, -1001)], 500)
    except _librdkafka.Error:
        pass
threads = [threading.Thread(target=call) for call in (ask, consumer.close)]
for thread in threads:
    thread.start()
    time.sleep(0.1)
consumer.abandon()
for thread in threads:
    thread.join()
"""  # in a separate process, because a defect crashes it
        subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)

    def test_a_wrong_option_is_a_configuration_error_without_its_value(self):
        error = self.assertRaises(ConfigurationError, self.open, options={"fetch.min.bytes": "s3cret"})
        self.assertIn("fetch.min.bytes", str(error))
        self.assertNotIn("s3cret", str(error))

    def test_an_exception_from_a_signal_handler_ends_a_poll(self):
        consumer = self.open()
        self.interrupt_after(0.02)
        self.assertRaises(KeyboardInterrupt, consumer.poll, 10, PATIENCE_SECONDS)
        self.assertEqual(((), ()), (tuple(consumer.poll(10, 0).parts), tuple(consumer.poll(10, 0).events)))

    def test_errors_of_the_client_are_passed_on(self):
        consumer = self.open()
        errors = []
        consumer.on_error = errors.append
        consumer.assign({TopicPartition("t", 0): 0})
        while not errors:
            consumer.poll(10, 0.1)
        self.assertIsInstance(errors[0], RetriableError)

    def test_every_call_of_a_closed_client_reports_that_it_is_closed(self):
        consumer = self.open()
        consumer.close()
        partition = TopicPartition("t", 0)
        for call in (
            lambda: consumer.poll(1, 0),
            lambda: consumer.assign({partition: 0}),
            lambda: consumer.pause([partition]),
            lambda: consumer.seek(partition, 0),
            lambda: consumer.fetched_ends([partition]),
            consumer.assignment,
            consumer.group_metadata,
        ):
            self.assertRaises(ClosedError, call)

    def test_a_poll_ends_when_another_thread_abandons_the_client(self):
        consumer = self.open()
        poller = threading.Thread(target=self.assertRaises, args=(ClosedError, self.poll_until_closed, consumer))
        poller.start()
        with self.assertRaisesRegex(RuntimeError, "another call waits"):
            while True:
                consumer._client.poll(1, 0)
        consumer.abandon()
        poller.join(PATIENCE_SECONDS)
        self.assertFalse(poller.is_alive())

    def poll_until_closed(self, consumer):
        while True:
            with contextlib.suppress(RuntimeError):  # during a poll of the other thread
                consumer.poll(1, PATIENCE_SECONDS)

    def test_a_consumer_is_freed_without_the_garbage_collector(self):
        consumer = self.open()
        consumer.close()
        alive = weakref.ref(consumer)
        self._cleanups.clear()
        gc.disable()
        self.addCleanup(gc.enable)
        del consumer
        self.assertIsNone(alive())

    def test_wrong_arguments_are_refused(self):
        client = self.open()._client
        for call, arguments in (
            (client.poll, (0, 0)),
            (client.poll, ("1", 0)),
            (client.poll, (1,)),
            (client.assign, (None,)),
            (client.assign, ([("t", 0)],)),
            (client.assign, ([["t", 0, 0]],)),
            (client.assign, ([("t\0", 0, 0)],)),
            (client.assign, ([("t", 2**40, 0)],)),
            (client.fetched_ends, ([("t", "0", 0)], 0)),
            (client.group_metadata, ()),
            (type(client), ({},)),
            (type(client), ({1: "2"}, print)),
        ):
            self.assertRaises((TypeError, ValueError, OverflowError), call, *arguments)

    def test_a_poll_may_request_more_messages_than_memory_could_hold(self):
        parts, _ = self.open()._client.poll(2**60, 0) or ([], [])
        self.assertEqual([], parts)

    def test_a_group_without_a_name_is_refused(self):
        error = self.assertRaises(ConfigurationError, self.open, group_id="")
        self.assertIn("group.id must not be empty", str(error))

    def test_a_refused_call_has_the_code_of_its_error(self):
        consumer = self.open()
        error = self.assertRaises(TransportError, consumer.seek, TopicPartition("t", 0), 5)
        self.assertEqual("_UNKNOWN_PARTITION", error.name)
        error = self.assertRaises(TransportError, consumer.subscribe, [], None)
        self.assertEqual("_INVALID_ARG", error.name)


class TestForkedChild(base.BaseTestCase):
    def test_a_forked_child_destroys_neither_the_inherited_client_nor_its_messages(self):
        program = """
import os, signal, sys
from confluent_kafka import KafkaError, Producer
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.settings import ConnectionSettings, ConsumerSettings
from monasca_common.kafka.transport.native.consumer import NativeConsumer
from monasca_common.tests.mock_broker import MockBroker
broker = MockBroker()
broker.create_topic("t")
producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
producer.produce("t", b"v", partition=0)
producer.flush(30)
consumer = NativeConsumer(ConsumerSettings(ConnectionSettings(broker.bootstrap_servers), ("t",), "g"))
consumer.assign({TopicPartition("t", 0): 0})
parts = ()
while not parts:
    parts = consumer.poll(10, 1).parts
child = os.fork()
if not child:
    signal.alarm(20)  # destroying it would wait for its threads, which are in the parent
    del parts
    consumer.abandon()
    del consumer
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, parts[0][1].column("values"), flush=True)
consumer.close()
"""
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=dict(os.environ)
        )
        self.assertEqual((0, "7 [b'v']\n"), (answer.returncode, answer.stdout), answer.stderr)


class TestWithBroker(NativeConsumerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.broker = MockBroker()
        producer = Producer({"bootstrap.servers": cls.broker.bootstrap_servers, "linger.ms": 60_000})
        for topic in ("t", "facts"):
            cls.broker.create_topic(topic)
            producer.list_topics(topic, PATIENCE_SECONDS)
        # A producer that knows its topics flushes the messages of a partition as one batch, which one poll returns.
        for number in range(400):
            producer.produce("t", b"%d" % number, partition=number % 4, timestamp=1000 + number)
        for value, key, headers in ((b"v\0", b"k", HEADERS), (b"", b"", None), (None, None, [("h", b"x")])):
            producer.produce("facts", value, key, partition=0, headers=headers, timestamp=12345)
        assert producer.flush(PATIENCE_SECONDS) == 0

    @classmethod
    def tearDownClass(cls):
        del cls.broker
        super().tearDownClass()

    def reading(self, topic, partitions=4, **changes):
        consumer = self.open(self.broker.bootstrap_servers, topics=(topic,), **changes)
        consumer.assign({TopicPartition(topic, number): BEGINNING for number in range(partitions)})
        return consumer

    def read(self, consumer, count, most=100):
        """Poll until ``count`` messages were returned; return the columns and the events."""
        parts, events = [], []
        while sum(len(columns) for _, columns in parts) < count:
            fetched = consumer.poll(most, PATIENCE_SECONDS)
            self.assertLessEqual(sum(len(columns) for _, columns in fetched.parts) + len(fetched.events), most)
            parts += fetched.parts
            events += fetched.events
        return parts, events

    def test_a_silent_client_connects_to_its_bootstrap_servers_again(self):
        self.useFixture(fixtures.MonkeyPatch(f"{native.__name__}.client._SILENT_SECONDS", 0.2))
        consumer = self.open()  # no broker is left, as after metadata without brokers
        consumer._notices._servers = self.broker.bootstrap_servers
        consumer.assign({TopicPartition("t", 0): BEGINNING})
        parts, _ = self.read(consumer, 100)
        self.assertEqual(100, sum(len(columns) for _, columns in parts))

    def test_columns_are_grouped_by_partition_in_order_of_offset(self):
        parts, _ = self.read(self.reading("t"), 400)
        found = {TopicPartition("t", number): [] for number in range(4)}
        for partition, columns in parts:
            values, offsets = columns.column("values"), columns.column("offsets")
            self.assertEqual([None] * len(columns), columns.column("keys"))
            self.assertEqual([1000 + int(value) for value in values], columns.column("timestamps"))
            found[partition] += zip(offsets, values, strict=True)
        for partition, messages in found.items():
            expected = [(number, b"%d" % (4 * number + partition.partition)) for number in range(100)]
            self.assertEqual(expected, messages)

    def test_a_poll_returns_at_most_the_requested_number(self):
        consumer = self.reading("t")
        for most in (1, 2, 7):
            self.assertGreaterEqual(most, sum(len(columns) for _, columns in self.read(consumer, 1, most)[0]))

    def test_values_keys_and_headers_are_those_that_were_written(self):
        ((_, columns),), _ = self.read(self.reading("facts", 1), 3)
        self.assertEqual([b"v\0", b"", None], columns.column("values"))
        self.assertEqual([b"k", b"", None], columns.column("keys"))
        self.assertEqual([tuple(HEADERS), (), (("h", b"x"),)], columns.column("headers"))
        self.assertEqual([12345] * 3, columns.column("timestamps"))
        self.assertIs(columns.column("values"), columns.column("values"))

    def test_a_header_is_the_last_one_with_its_name(self):
        ((_, columns),), _ = self.read(self.reading("facts", 1), 3)
        self.assertRaises(ValueError, columns.header, "h\0")
        for _ in range(2):
            last = [dict(headers).get("h") for headers in columns.column("headers")]
            self.assertEqual(last, columns.header("h"))
            self.assertEqual([None] * 3, columns.header("unknown"))
            columns.copy()  # then read from the columns

    def test_a_selection_keeps_no_reference_to_the_others(self):
        ((partition, columns),), _ = self.read(self.reading("facts", 1), 3)
        part = PartitionBatch(partition, 1, columns)
        selected = part.select([2])
        rows = weakref.ref(columns)
        del part, columns
        self.assertIsNone(rows())
        message = selected.message(0)
        self.assertEqual((2, None, None, (("h", b"x"),)), (message.offset, message.value, message.key, message.headers))

    def test_columns_outlive_their_client(self):
        consumer = self.reading("facts", 1)
        ((_, columns),), _ = self.read(consumer, 3)
        consumer.close()
        self.assertEqual(2, sys.getrefcount(consumer._client))  # only the references of `consumer` and of the call
        del consumer
        self.assertEqual([b"v\0", b"", None], columns.column("values"))
        self.assertEqual((("h", b"x"),), columns.column("headers")[2])

    def test_all_columns_together_keep_neither_the_messages_nor_the_client(self):
        consumer = self.reading("facts", 1)
        ((_, columns),), _ = self.read(consumer, 3)
        references = sys.getrefcount(consumer._client)
        columns.copy()
        self.assertEqual(references - 1, sys.getrefcount(consumer._client))
        self.assertEqual([b"k", b"", None], columns.column("keys"))

    def test_the_oldest_of_many_batches_are_copied(self):
        consumer = self.reading("t")
        parts, _ = self.read(consumer, 400, most=1)
        self.assertEqual(400, len(parts))
        self.assertEqual(64, sys.getrefcount(consumer._client) - 2)  # each of the newest batches refers to the client
        for _, columns in parts:
            self.assertEqual([1] * len(COLUMNS), [len(columns.column(name)) for name in COLUMNS])

    def test_the_end_of_a_partition_is_an_event(self):
        consumer = self.reading("facts", 1)
        _, events = self.read(consumer, 3)
        while not events:
            events += consumer.poll(10, PATIENCE_SECONDS).events
        self.assertEqual(
            [("_PARTITION_EOF", "facts", 0, 3)],
            [(event.error.name, event.topic, event.partition, event.offset) for event in events],
        )

    def test_messages_of_an_interrupted_poll_are_read_again_after_a_seek(self):
        consumer = self.reading("facts", 1)
        self.read(consumer, 3)
        self.interrupt_after(0.02)
        self.assertRaises(KeyboardInterrupt, self.read, consumer, 1000)
        consumer.seek(TopicPartition("facts", 0), 1)
        ((_, columns),), _ = self.read(consumer, 2)
        self.assertEqual([1, 2], columns.column("offsets"))

    def test_offsets_and_positions_of_partitions_are_returned(self):
        consumer = self.reading("facts", 1)
        partition = TopicPartition("facts", 0)
        self.assertEqual({partition: None}, consumer.position([partition]))
        self.read(consumer, 3)
        self.assertEqual({partition}, consumer.assignment())
        self.assertEqual({partition: 3}, consumer.position([partition]))
        self.assertEqual({partition: 3}, consumer.fetched_ends([partition, TopicPartition("facts", 99)]))
        self.assertEqual({partition: 0}, consumer.first_offsets([partition], PATIENCE_SECONDS))
        self.assertEqual({partition: 3}, consumer.end_offsets([partition], PATIENCE_SECONDS))
        self.assertEqual({partition: None}, consumer.commit({partition: 2}))
        stored = consumer.committed([partition, TopicPartition("facts", 1)], PATIENCE_SECONDS)
        self.assertEqual({partition: 2, TopicPartition("facts", 1): None}, stored)
        self.assertEqual({partition: 3}, consumer.offsets_for_times({partition: 12346}, PATIENCE_SECONDS))

    def test_a_rebalance_calls_back_within_polls_and_closing(self):
        received = []

        class Callbacks:
            def on_assign(self, partitions):
                received.append(("assign", sorted(partitions)))
                consumer.assign_owned(dict.fromkeys(partitions, BEGINNING))

            def on_revoke(self, partitions):
                received.append(("revoke", sorted(partitions)))

        consumer = self.open(self.broker.bootstrap_servers, topics=("facts",))
        consumer.subscribe(["facts"], Callbacks())
        self.read(consumer, 3)
        consumer.close()
        everything = [TopicPartition("facts", number) for number in range(4)]
        self.assertEqual([("assign", everything), ("revoke", everything)], received)

    def test_an_exception_in_a_callback_ends_the_poll_and_the_client_owns_the_partitions(self):
        class Callbacks:
            def on_assign(self, partitions):
                raise KeyboardInterrupt

            def on_revoke(self, partitions):
                pass

        consumer = self.open(self.broker.bootstrap_servers, topics=("facts",))
        consumer.subscribe(["facts"], Callbacks())
        self.assertRaises(KeyboardInterrupt, self.read, consumer, 1)
        self.assertEqual(4, len(consumer.assignment()))

    def test_a_partition_that_was_sought_keeps_its_position_as_another_one_is_assigned_again(self):
        class Callbacks:
            def on_assign(self, partitions):
                consumer.assign_owned({**dict.fromkeys(partitions, BEGINNING), first: 1})

            def on_revoke(self, partitions):
                pass

        first = TopicPartition("t", 0)
        consumer = self.open(self.broker.bootstrap_servers, assignment_strategy="range")
        consumer.subscribe(["t"], Callbacks())
        self.read(consumer, 1)
        consumer.pause([first])
        consumer.seek(first, 50)
        consumer.assign_owned({TopicPartition("t", 1): BEGINNING})
        consumer.resume([first])
        offsets = []
        while not offsets:
            for partition, columns in consumer.poll(1000, PATIENCE_SECONDS).parts:
                offsets += columns.column("offsets") if partition == first else []
        self.assertEqual(50, offsets[0])

    def test_a_callback_that_assigns_does_not_keep_revoked_partitions(self):
        class Callbacks:
            def on_assign(self, partitions):
                consumer.assign_owned(dict.fromkeys(partitions, BEGINNING))

            def on_revoke(self, partitions):
                consumer.assign_owned({TopicPartition("facts", 0): BEGINNING})
                revoked.append(partitions)

        revoked = []
        consumer = self.open(self.broker.bootstrap_servers, topics=("facts",), assignment_strategy="cooperative-sticky")
        consumer.subscribe(["facts"], Callbacks())
        self.read(consumer, 3)
        consumer._ask("unsubscribe", {})
        while not revoked:
            consumer.poll(10, 0.1)
        self.assertEqual(set(), consumer.assignment())

    def test_calls_of_other_threads_end_when_it_is_closed(self):
        for _ in range(30):
            consumer = self.reading("t")
            calls = (consumer.assignment, lambda consumer=consumer: consumer.position([TopicPartition("t", 0)]))
            threads = [threading.Thread(target=self.call_until_closed, args=(call,), daemon=True) for call in calls]
            for thread in threads:
                thread.start()
            consumer.close()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
                self.assertFalse(thread.is_alive())

    def call_until_closed(self, call):
        with contextlib.suppress(ClosedError, TransportError):
            while True:
                call()

    def test_a_client_that_is_closed_during_a_callback_is_closed(self):
        class Callbacks:
            def on_assign(self, partitions):
                closing = threading.Thread(target=consumer.close)
                closing.start()
                closing.join(PATIENCE_SECONDS)
                closed.append(not closing.is_alive())

            def on_revoke(self, partitions):
                pass

        closed = []
        consumer = self.open(self.broker.bootstrap_servers, topics=("facts",))
        consumer.subscribe(["facts"], Callbacks())
        self.assertRaises(ClosedError, self.read, consumer, 1000)
        self.assertEqual([True], closed)
