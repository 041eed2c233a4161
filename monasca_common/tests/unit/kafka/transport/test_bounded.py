# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers with a client whose calls do not return."""

import contextlib
import threading
from types import SimpleNamespace

import fixtures
from oslotest import base

from monasca_common.kafka.consumer.consumer import KafkaConsumer
from monasca_common.kafka.errors import CommitUnknown, FatalError
from monasca_common.kafka.message import TopicPartition
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import Hang, MemoryKafka
from monasca_common.kafka.transport.base import ConsumerTransport, ProducerTransport
from monasca_common.kafka.transport.bounded import COMMIT_SECONDS, BoundedConsumer, BoundedProducer
from monasca_common.kafka.transport.client_thread import GRACE_SECONDS
from monasca_common.kafka.transport.memory import MemoryConsumer
from monasca_common.tests.unit.kafka.leaping_clock import LeapingClock
from monasca_common.tests.unit.kafka.transactional_memory import TransactionalMemoryProducer

TIMEOUT = 60.0
T = TopicPartition("t", 0)


class BoundedCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))
        self.clock = LeapingClock()
        self.kafka = self.useFixture(MemoryKafka(clock=self.clock))
        self.addCleanup(self.kafka.broker.clear_faults)


class ProducerTest(BoundedCase):
    def setUp(self):
        super().setUp()
        self.kafka.broker.create_topic("t")
        settings = self.kafka.producer_settings(transactional_id="id", transaction_timeout_seconds=TIMEOUT)

        def open_transport(batch_bytes, on_error):
            self.client = TransactionalMemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)
            self.addCleanup(self.client.returned.set)
            return self.client

        self.producer = KafkaProducer(settings, open_transport)
        self.addCleanup(self.producer.close, 0)
        self.clock.hung = lambda: self.client.hung
        self.assertTrue(self.producer.publish("t", [b"warm"]).ok)
        self.client.asked.clear()

    def hang(self, *what):
        self.client.hanging.update(what)

    def notice(self):
        """Wait until the serving thread has noticed that the client is poisoned."""
        while self.producer.health().last_error is None:
            threading.Event().wait(0.01)

    def transact(self):
        with self.producer.transaction() as transaction:
            transaction.send("t", b"1")

    def test_a_commit_that_hangs_ends_at_its_deadline_and_its_outcome_is_unknown(self):
        self.hang("commit")
        error = self.assertRaises(FatalError, self.transact)
        self.assertIn("commit_transaction has not returned", str(error))
        self.assertIn("The outcome of its transaction is unknown", str(error))
        self.assertTrue(TIMEOUT <= self.clock.monotonic() <= TIMEOUT + 2 * GRACE_SECONDS)
        self.assertTrue(self.producer.health().poisoned)

    def test_a_poisoned_client_receives_no_further_calls(self):
        self.hang("commit")
        self.assertRaises(FatalError, self.transact)
        self.client.asked.clear()
        self.assertRaises(FatalError, self.transact)
        self.assertRaises(FatalError, self.producer.init_transactions)
        self.producer.close(0)
        self.assertEqual([], self.client.asked)

    def test_later_messages_are_definitely_not_sent(self):
        self.hang("commit")
        self.assertRaises(FatalError, self.transact)
        self.notice()
        self.client.asked.clear()
        report = self.producer.publish("t", [b"2"])
        while report.unknown:  # its topic's limit is requested again, on another thread
            report = self.producer.retry(report)
        self.assertEqual([FatalError], [type(delivery.error.cause) for delivery in report.failed])
        self.assertEqual([], self.client.asked)

    def test_messages_in_flight_are_unknown(self):
        self.kafka.broker.disconnect()
        self.hang("begin")
        self.producer.send("t", b"on its way")
        published = self.producer.publish("t", [b"in a bulk"], timeout=0)
        self.assertRaises(FatalError, self.producer.transaction().__enter__)
        self.notice()
        report = self.producer.flush(1)
        self.assertEqual((1, 0), (len(report.unknown), len(report.failed)))
        self.assertIn("begin_transaction has not returned", str(report.unknown[0].error))
        self.assertIn("the client kept its bytes", str(report.unknown[0].error))
        published = self.producer.retry(published, timeout=1)
        self.assertIsInstance((published.unknown + published.failed)[0].error.cause, FatalError)

    def test_the_first_call_also_has_a_deadline(self):
        self.hang("init")
        self.assertRaises(FatalError, self.producer.transaction)
        self.assertEqual(TIMEOUT + GRACE_SECONDS, self.clock.monotonic())

    def test_an_abort_that_hangs_ends_at_its_deadline(self):
        self.hang("abort")

        def interrupted():
            with self.producer.transaction():
                raise ZeroDivisionError

        self.assertRaises(FatalError, interrupted)

    def test_a_late_response_changes_nothing(self):
        self.hang("commit")
        self.assertRaises(FatalError, self.transact)
        self.client.returned.set()
        self.assertRaises(FatalError, self.transact)
        self.assertTrue(self.producer.health().poisoned)

    def test_close_ends_at_its_time_out_while_a_call_hangs(self):
        self.hang("close")
        begun = self.clock.monotonic()
        self.producer.close(3)
        self.assertTrue(self.clock.monotonic() - begun <= 4)


class ConsumerTest(BoundedCase):
    def setUp(self):
        super().setUp()
        self.kafka.broker.create_topic("t")
        self.settings = self.kafka.consumer_settings("t", stop_timeout_seconds=5.0)
        self.consumer = self.open()
        self.clock.hung = lambda: self.kafka.broker.hanging > 0

    def open(self):
        consumer = KafkaConsumer(self.settings, MemoryConsumer(self.settings))
        self.addCleanup(consumer.close, 0)
        return consumer

    def poll(self, consumer=None):
        return (consumer or self.consumer).poll(timeout=0)

    def own(self):
        while not self.consumer.assignment():
            self.poll()

    def hang(self, kind):
        self.kafka.broker.inject(kind, Hang())

    def test_a_start_that_hangs_ends_the_consumer_at_its_deadline(self):
        self.hang("committed")

        def polls():
            for _ in range(3):
                self.poll()

        error = self.assertRaises(FatalError, polls)
        self.assertIn("committed has not returned 5 s after its time-out of 5.0 s", str(error))
        self.assertIn("resumes from the committed offsets", str(error))
        self.assertTrue(self.consumer.health().poisoned)

    def test_a_commit_that_hangs_is_unknown_immediately_and_ends_the_consumer_later(self):
        self.own()
        self.hang("commit")
        self.assertIsInstance(self.consumer.commit({T: 0}, 1.0)[T].error, CommitUnknown)
        self.assertEqual(1.0, self.clock.monotonic())
        self.poll()
        self.clock.advance(COMMIT_SECONDS + GRACE_SECONDS)
        self.assertEqual(COMMIT_SECONDS + GRACE_SECONDS + 1, self.consumer.health().oldest_call_seconds)
        self.inspect()
        self.assertRaises(FatalError, self.poll)
        self.assertIsInstance(self.consumer.commit({T: 0})[T].error, FatalError)

    def inspect(self):
        """Run the watchdog's checks of two seconds."""
        for _ in range(2):
            self.consumer._transport.thread.inspect()

    def test_a_late_response_changes_nothing(self):
        self.own()
        self.hang("commit")
        self.consumer.commit({T: 0}, 1.0)
        self.clock.advance(COMMIT_SECONDS + GRACE_SECONDS)
        self.inspect()
        self.kafka.broker.clear_faults()
        self.assertRaises(FatalError, self.poll)

    def test_close_ends_at_its_time_out_while_a_call_hangs(self):
        self.own()
        self.hang("commit")
        self.consumer.commit({T: 0}, 0.0)
        begun = self.clock.monotonic()
        self.consumer.close(3.0)
        self.assertTrue(self.clock.monotonic() - begun <= 4.0)
        self.assertIn("did not leave group test-group in time", self.log.output)

    def test_the_close_of_a_poisoned_consumer_ends_the_thread_that_compares_topic_ids(self):
        self.own()
        self.consumer.topic_ids()
        thread = self.consumer._transport.topic_thread._thread
        self.hang("committed")
        with contextlib.suppress(FatalError):
            self.consumer.seek_to_committed()
        self.consumer.close(0)
        thread.join(_SECONDS)
        self.assertFalse(thread.is_alive())

    def test_another_consumer_resumes_after_the_committed_messages(self):
        self.own()
        self.hang("committed")
        with contextlib.suppress(FatalError):
            self.consumer.seek_to_committed()
        self.consumer.close(0)
        [member] = self.kafka.broker.members(self.settings.group_id)
        self.kafka.broker.expire_member(self.settings.group_id, member)
        other = self.open()
        while not other.assignment():
            self.poll(other)
        self.assertEqual(0, other.position(T))


_SECONDS = 5.0
#: The thread of each call. For a new method, decide whether it can wait for a broker, and add it here.
PRODUCER_CALLS = {
    "init_transactions": lambda bounded: bounded.init_transactions(_SECONDS),
    "begin_transaction": lambda bounded: bounded.begin_transaction(),
    "send_offsets": lambda bounded: bounded.send_offsets({}, None, _SECONDS),
    "commit_transaction": lambda bounded: bounded.commit_transaction(_SECONDS),
    "abort_transaction": lambda bounded: bounded.abort_transaction(_SECONDS),
    "send": lambda bounded: bounded.send("t", b"", None, bounded.new_reservation(0, 1, 100, 100, 0, None)),
    "new_reservation": lambda bounded: bounded.new_reservation(0, 1, 100, 100, 0, None),
    "produce": lambda bounded: bounded.produce("t", [b""], None, 0, None),
    "produce_record": lambda bounded: bounded.produce_record("t", b"", None, 0, 0, (), 0),
    "queued": lambda bounded: bounded.queued(),
    "count": lambda bounded: bounded.count(60),
    "fault": lambda bounded: bounded.fault(None),
    "poll": lambda bounded: bounded.poll(_SECONDS),
    "flush": lambda bounded: bounded.flush(_SECONDS),
    "purge": lambda bounded: bounded.purge(),
    "max_message_bytes": lambda bounded: bounded.max_message_bytes(["t"], _SECONDS),
    "topic_ids": lambda bounded: bounded.topic_ids(["t"], _SECONDS),
    "close": lambda bounded: bounded.close(_SECONDS),
}
CONSUMER_CALLS = {
    "commit": lambda bounded: bounded.commit({}),
    "committed": lambda bounded: bounded.committed([T], _SECONDS),
    "fetched_ends": lambda bounded: bounded.fetched_ends([T]),
    "offsets_for_times": lambda bounded: bounded.offsets_for_times({T: 0}, _SECONDS),
    "partition_count": lambda bounded: bounded.partition_count("t", _SECONDS),
    "subscribe": lambda bounded: bounded.subscribe(["t"], None),
    "assign_owned": lambda bounded: bounded.assign_owned({T: 0}),
    "assign": lambda bounded: bounded.assign({T: 0}),
    "assignment": lambda bounded: bounded.assignment(),
    "poll": lambda bounded: bounded.poll(1, _SECONDS),
    "pause": lambda bounded: bounded.pause([T]),
    "resume": lambda bounded: bounded.resume([T]),
    "seek": lambda bounded: bounded.seek(T, 0),
    "topic_ids": lambda bounded: bounded.topic_ids(["t"], _SECONDS),
    "group_metadata": lambda bounded: bounded.group_metadata(),
    "close": lambda bounded: bounded.thread.finish(bounded.close, _SECONDS),
    "abandon": lambda bounded: bounded._give_up()(),
}
# librdkafka keeps the time-out of these calls or sends no request; requests about topics have a separate client.
ON_THE_CALLERS_THREAD = {"fault", "poll", "flush", "purge", "max_message_bytes", "topic_ids"} | {
    *("new_reservation", "send", "produce", "produce_record", "queued", "count"),
    *("subscribe", "assign_owned", "assign", "assignment", "pause", "resume", "seek", "fetched_ends", "group_metadata"),
    "abandon",
}
DERIVED = {"first_offsets", "end_offsets"}  # implemented by another call


class ThreadsTest(BoundedCase):
    """Checks the thread of each call of a client."""

    def client(self, kind, **instead):
        """Return a client whose calls record their thread, except the given calls."""
        self.threads = {}

        def noted(name):
            def call(*_arguments):
                self.threads[name] = threading.current_thread().name
                return 0

            return call

        methods = [name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")]
        self.names = [name for name in methods if name not in DERIVED]
        calls = {name: noted(name) for name in self.names} | instead
        return SimpleNamespace(clock=self.clock, driver="memory", refusals=(), send_is_atomic=False, **calls)

    def assert_on_the_helper(self, helper, calls, bounded, **others):
        """Check the calls' threads. ``others``: the thread of each call that runs on another thread."""
        self.assertEqual(set(self.names), calls.keys())
        here = threading.current_thread().name
        for call in calls.values():
            call(bounded())
        expected = {name: here if name in ON_THE_CALLERS_THREAD else helper for name in self.names}
        self.assertEqual(expected | others, self.threads)

    def test_calls_of_a_producer_that_wait_for_a_broker_are_on_its_helper(self):
        client = self.client(ProducerTransport)
        self.assert_on_the_helper("kafka-producer-calls", PRODUCER_CALLS, lambda: BoundedProducer(client, self.fail))

    def test_calls_of_a_consumer_that_wait_for_a_broker_are_on_its_helper(self):
        client = self.client(ConsumerTransport)
        self.assert_on_the_helper(
            "kafka-consumer-calls",
            CONSUMER_CALLS,
            lambda: BoundedConsumer(client),
            topic_ids="kafka-consumer-topics",
        )

    def assert_is_reported(self, name, kind, calls, bounded):
        """Check the reports while the call hangs, and after it has returned."""
        opened = []

        def hangs(*_arguments):
            thread = opened[0].thread
            self.clock.advance(40.0)
            thread.inspect()
            self.assertIn(f"{name} has not returned for 40 s", self.log.output)
            self.assertEqual(40.0, thread.oldest_seconds())

        opened.append(bounded(self.client(kind, **{name: hangs})))
        calls[name](opened[0])
        self.assertIn(f"{name} has returned after 40 s", self.log.output)

    def test_a_poll_of_a_producer_that_hangs_is_reported(self):
        self.assert_is_reported(
            "poll", ProducerTransport, PRODUCER_CALLS, lambda each: BoundedProducer(each, self.fail)
        )

    def test_a_flush_that_hangs_is_reported(self):
        self.assert_is_reported(
            "flush", ProducerTransport, PRODUCER_CALLS, lambda each: BoundedProducer(each, self.fail)
        )

    def test_a_poll_of_a_consumer_that_hangs_is_reported(self):
        self.assert_is_reported("poll", ConsumerTransport, CONSUMER_CALLS, BoundedConsumer)
