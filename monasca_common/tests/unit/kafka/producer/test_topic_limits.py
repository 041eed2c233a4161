# SPDX-License-Identifier: Apache-2.0
"""Requests for topics' limits: combined, with a time limit for each, and only for valid names."""

import threading
import time
from unittest import mock

import fixtures

from monasca_common.kafka.errors import DeliveryAbandoned, DeliveryRefused
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import Fail, MemoryProducer
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase
from monasca_common.tests.unit.kafka.transactional_memory import TransactionalMemoryProducer

_SECONDS = 50


class Asked(MemoryProducer):
    """Records the topics of each request; ``held``: topics whose requests wait until they are released."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.requests = []
        self.held = set()
        self.arrived = threading.Semaphore(0)
        self.let_go = threading.Event()

    def max_message_bytes(self, topics, timeout):
        self.requests.append(list(topics))
        self.arrived.release()
        if self.held.intersection(topics):
            assert self.let_go.wait(_SECONDS)
        return super().max_message_bytes(topics, timeout)


class TopicLimitsCase(ProducerCase):
    def setUp(self):
        super().setUp()
        self.transport = None
        self.others = set(threading.enumerate())  # threads of earlier tests, which will end soon

    def threads(self, name):
        return [thread for thread in threading.enumerate() if thread.name == name and thread not in self.others]

    def producer(self, **settings):
        settings = self.kafka.producer_settings(**settings)

        def open_transport(batch_bytes, on_error):
            self.transport = Asked(settings, batch_bytes=batch_bytes, on_error=on_error)
            return self.transport

        producer = KafkaProducer(settings, open_transport)
        self.addCleanup(producer.close, 0)
        self.addCleanup(self.transport.let_go.set)
        return producer

    def hold(self, topic):
        """Send to this topic; its request gets no response."""
        producer = self.producer()
        self.transport.held.add(topic)
        producer.send(topic, b"held")
        self.assertTrue(self.transport.arrived.acquire(timeout=_SECONDS))
        return producer


class TestRequests(TopicLimitsCase):
    # Rule 2
    def test_the_limit_of_each_topic_is_requested_once_and_waits_for_no_other_topic(self):
        producer = self.hold("a")
        late = [f"late-{number}" for number in range(60)]
        for topic in late:
            producer.send(topic, b"v")
        self.wait_until(lambda: set(late) <= set(self.broker.topics()))
        self.transport.let_go.set()
        self.assertEqual(61, producer.flush(_SECONDS).delivered_count)
        self.assertEqual(["a", *late], [topic for request in self.transport.requests for topic in request])

    def test_a_producer_continues_while_a_client_for_a_small_topic_opens(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        producer = self.warm_producer()
        opening, opened, open_client = threading.Event(), threading.Event(), producer._clients.open
        self.addCleanup(opened.set)

        def slow(batch_bytes):
            opening.set()
            assert opened.wait(_SECONDS)
            return open_client(batch_bytes)

        producer._clients.open = slow
        producer.send("small", b"1")
        self.assertTrue(opening.wait(_SECONDS))
        self.assertTrue(self.at_once(lambda: producer.publish("t", [b"2"], timeout=3600)).ok)
        opened.set()
        self.assertEqual(1, producer.flush(_SECONDS).delivered_count)

    def test_two_requests_for_the_same_batch_size_share_one_client(self):
        for topic in ("small-1", "small-2"):
            self.broker.create_topic(topic, 1, max_message_bytes=500_000)
        producer = self.producer()
        main, opened, open_client = self.transport, [], producer._clients.open
        both_open = threading.Barrier(2, timeout=_SECONDS)

        def slow(batch_bytes):
            client = open_client(batch_bytes)
            opened.append(client)
            both_open.wait()
            return client

        producer._clients.open = slow
        producer.send("small-1", b"1")
        self.assertTrue(main.arrived.acquire(timeout=_SECONDS))
        producer.send("small-2", b"2")
        self.assertEqual(2, producer.flush(_SECONDS).delivered_count)
        [unused] = set(opened) - set(producer._clients.in_use())
        self.wait_until(lambda: unused._client is None)

    def test_a_client_that_opens_while_the_producer_closes_is_closed(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        producer = self.producer()
        opening, closed, open_client = threading.Event(), threading.Event(), producer._clients.open
        released = []

        def slow(batch_bytes):
            opening.set()
            assert closed.wait(_SECONDS)
            return open_client(batch_bytes)

        producer._clients.open = slow
        producer._clients.release, release = lambda clients=None: released.append(clients), producer._clients.release
        producer.send("small", b"1")
        self.assertTrue(opening.wait(_SECONDS))
        self.assertEqual(1, len(self.at_once(lambda: producer.close(0)).failed))
        release()
        closed.set()
        for thread in self.threads("kafka-topic-limits"):
            thread.join(_SECONDS)
        [_, (client,)] = released
        self.assertIs(self.transport, client._client)
        release((client,))

    def test_the_requesting_thread_ends_without_further_requests(self):
        producer = self.producer()
        producer.publish("t", [b"1"]).raise_for_undelivered()
        for thread in self.threads("kafka-topic-limits"):
            thread.join(_SECONDS)
            self.assertFalse(thread.is_alive())
        self.assertTrue(producer.publish("u", [b"1"]).ok)

    def test_a_request_whose_thread_cannot_start_is_repeated(self):
        producer, start, refused = self.producer(), threading.Thread.start, []

        def refuse_once(thread):
            if thread.name == "kafka-topic-limits" and not refused:
                refused.append(thread)
                raise RuntimeError("can't start new thread")
            start(thread)

        with mock.patch.object(threading.Thread, "start", refuse_once):
            began = time.monotonic()
            self.assertTrue(producer.publish("t", [b"1"]).ok)
            self.assertLess(time.monotonic() - began, 8, "a request without a response is repeated after 10 s")

    def test_a_client_that_replaces_another_does_not_wait_for_the_response_to_the_other_client(self):
        producer = self.hold("a")
        before = self.transport
        self.addCleanup(before.let_go.set)
        producer.reopen()
        self.assertTrue(self.at_once(lambda: producer.publish("a", [b"1"], timeout=3600)).ok)
        self.transport.held.add("b")
        producer.send("b", b"2")
        self.assertTrue(self.transport.arrived.acquire(timeout=_SECONDS))
        self.assertTrue(self.transport.arrived.acquire(timeout=_SECONDS))
        before.let_go.set()
        self.assertEqual([["a"], ["b"]], self.transport.requests)

    def test_a_response_that_comes_after_the_close_opens_no_client(self):
        self.broker.create_topic("small", 1, max_message_bytes=500_000)
        producer = self.hold("small")
        client = self.transport
        producer.close(0)
        client.let_go.set()
        for thread in self.threads("kafka-topic-limits"):
            thread.join(_SECONDS)
        self.assertIs(client, self.transport)

    def test_a_close_does_not_wait_for_a_response(self):
        producer = self.hold("a")
        report = self.at_once(lambda: producer.close(0))
        self.assertIsInstance(report.failed[0].error, DeliveryAbandoned)


class TestByTopic(TopicLimitsCase):
    def test_the_error_of_one_topic_delays_no_other_topic_of_its_request(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), topic="bad", count=None)
        producer = self.hold("a")
        producer.send("bad", b"1")
        producer.send("good", b"2")
        self.transport.let_go.set()
        self.assertTrue(self.at_once(lambda: producer.publish("good", [b"3"], timeout=3600)).ok)
        self.assertIn(["bad", "good"], self.transport.requests)
        self.assertEqual([b"2", b"3"], self.values("good"))
        self.assertNotIn("bad", self.broker.topics())

    def test_the_time_limit_of_each_topic_starts_with_its_first_message(self):
        self.broker.create_topic("early")
        self.broker.create_topic("late")
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        producer = self.producer()
        producer.send("early", b"1")
        self.clock.advance(9)
        producer.send("late", b"2")
        self.clock.advance(1)
        self.assertTrue(producer.publish("early", [b"3"], timeout=3600).ok)
        self.assertEqual(1, len(producer.publish("late", [b"4"], **AWAY).unknown))
        self.assertEqual(([b"1", b"3"], []), (self.values("early"), self.values("late")))


class TestAbortedTransactions(TopicLimitsCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())  # whose time passes
        self.broker = self.kafka.broker
        settings = self.kafka.producer_settings(transactional_id="mine", transaction_timeout_seconds=0.1)
        self.transactional = KafkaProducer(
            settings,
            lambda batch_bytes, on_error: TransactionalMemoryProducer(
                settings, batch_bytes=batch_bytes, on_error=on_error
            ),
        )
        self.addCleanup(self.transactional.close, 0)
        self.broker.create_topic("t", 1)
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)

    # Rule 20
    def test_a_message_that_waits_for_a_limit_as_its_transaction_is_aborted_does_not_enter_the_next_one(self):
        self.assertRaises(ZeroDivisionError, self.break_down)
        self.assert_next_one_commits_only_its_own()

    # Rule 20
    def test_a_message_of_a_transaction_whose_abort_is_interrupted_does_not_enter_the_next_one(self):
        with mock.patch.object(self.transactional, "flush", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.break_down)
        self.assert_next_one_commits_only_its_own()

    def break_down(self):
        with self.transactional.transaction() as transaction:
            transaction.send("t", b"aborted")
            raise ZeroDivisionError

    def assert_next_one_commits_only_its_own(self):
        self.broker.clear_faults()
        with self.transactional.transaction() as transaction:
            transaction.send("t", b"committed")
            self.wait_until_settled(self.transactional)
        self.assertEqual([b"committed"], self.values())


class TestHandler(TopicLimitsCase):
    def test_a_send_in_a_signal_handler_does_not_deadlock_with_an_arriving_limit(self):
        self.broker.create_topic("u", 1)
        producer = self.warm_producer()
        limits, table = producer._limits, producer._table
        handing_over, in_handler = threading.Event(), threading.Event()
        hand_over = limits._hand_over

        def paused(limit, bulk):
            handing_over.set()
            in_handler.wait(0.2)
            hand_over(limit, bulk)

        def call_with_handler():
            with table.lock:  # like a call that the handler interrupts
                in_handler.set()
                producer.send("v", b"of the handler")

        limits._hand_over = paused
        producer.send("u", b"a")
        self.assertTrue(handing_over.wait(_SECONDS))
        thread = threading.Thread(target=call_with_handler, daemon=True)
        thread.start()
        thread.join(_SECONDS / 10)
        self.assertFalse(thread.is_alive())


class TestRecreated(TopicLimitsCase):
    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("monasca_common.kafka"))

    def recreate(self):
        self.broker.delete_topic("t")
        self.broker.create_topic("t", max_message_bytes=2000)

    def test_a_recreated_topic_is_logged_and_counted_and_its_limit_requested_again(self):
        producer = self.producer()
        producer.publish("t", [b"1"]).raise_for_undelivered()
        watch = producer._limits.watch
        watch.check()
        self.assertEqual(0, producer.health().recreated_topics)
        self.recreate()
        watch.check()
        watch.check()
        self.assertEqual(1, producer.health().recreated_topics)
        self.assertIn("'t', which this producer writes to, was deleted and recreated", self.log.output)
        [delivery] = producer.publish("t", [b"x" * 3000]).failed
        self.assertEqual(2000, delivery.error.limit)

    def test_the_watch_begins_with_the_first_message_and_ends_with_the_close(self):
        producer = self.producer()
        self.assertEqual([], self.threads("kafka-topic-watch"))
        producer.publish("t", [b"1"]).raise_for_undelivered()
        [thread] = self.threads("kafka-topic-watch")
        producer.close()
        thread.join(_SECONDS)
        self.assertFalse(thread.is_alive())

    def test_no_topic_is_watched_if_the_interval_is_zero(self):
        producer = self.producer(topic_check_seconds=0)
        producer.publish("t", [b"1"]).raise_for_undelivered()
        self.assertEqual([], self.threads("kafka-topic-watch"))


class TestNames(TopicLimitsCase):
    def test_an_invalid_topic_name_is_refused_without_a_request(self):
        producer = self.producer()
        for name in ("", ".", "..", "no/such", "x" * 250, "nul\0", "surrogate\udc80", "\u00fc", "line\n"):
            [delivery] = producer.publish(name, [b"1"]).failed
            self.assertIsInstance(delivery.error, DeliveryRefused)
            self.assertTrue(delivery.error.permanent)
            self.assertIn("letters, digits", str(delivery.error))
        self.assertEqual([], self.transport.requests)

    def test_every_valid_topic_name_is_accepted(self):
        for name in ("a", "x" * 249, "...", "A.b_c-9"):
            self.assertTrue(self.producer().publish(name, [b"1"]).ok)
