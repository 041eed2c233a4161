# SPDX-License-Identifier: Apache-2.0
"""What was delivered is counted once, in the bucket of its record, whoever interrupts whom."""

import itertools
import threading
from unittest import mock

from monasca_common.kafka.errors import MisuseError
from monasca_common.kafka.producer import delivery_counts
from monasca_common.kafka.producer.delivery_counts import DeliveryCounter
from monasca_common.kafka.producer.ledger import Ledger
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.producer.producer_case import ProducerCase

_SECONDS = 20
_BUCKET_MS = 60_000


def _once(call, interruption):
    """``call``, interrupted before its first time by ``interruption`` on the thread that calls this."""
    owner, left = threading.current_thread(), [interruption]

    def interrupted(*arguments, **keywords):
        if left and threading.current_thread() is owner:
            left.pop()()
        return call(*arguments, **keywords)

    return interrupted


def _ctrl_c():
    raise KeyboardInterrupt


class DeliveryCountsTest(ProducerCase):
    def setUp(self):
        super().setUp()
        self.counted = self.producer()
        self.counter = self.counted.count_deliveries(_BUCKET_MS // 1000)
        self.counted.publish("t", [b"the log keeps our time"])

    def assert_counted_as_logged(self):
        logged = {}
        for message in self.broker.records("t"):
            bucket_ms = message.timestamp_ms // _BUCKET_MS * _BUCKET_MS
            logged[bucket_ms] = logged.get(bucket_ms, 0) + 1
        counted = {bucket_ms: count.messages for (_, bucket_ms), count in self.counter.take().items()}
        self.assertEqual(logged, counted)
        self.assertEqual(0, self.counted.health().outstanding_bytes)
        return logged

    def test_a_signal_handler_that_closes_while_deliveries_are_counted(self):
        self.publish_with_a_close_at(delivery_counts, "_milliseconds")
        self.assert_counted_as_logged()

    def test_a_signal_handler_that_closes_before_a_delivery_is_counted(self):
        self.publish_with_a_close_at(DeliveryCounter, "_settle_group")
        self.assert_counted_as_logged()

    def test_a_signal_handler_that_closes_while_messages_are_asked_for_their_time(self):
        self.clock.advance(_BUCKET_MS / 1000)
        self.publish_with_a_close_at(DeliveryCounter, "_learn")
        self.assert_counted_as_logged()

    def test_a_signal_handler_that_closes_before_a_message_is_asked_for_its_time(self):
        self.clock.advance(_BUCKET_MS / 1000)
        self.publish_with_a_close_at(DeliveryCounter, "_settle_asked")
        self.assert_counted_as_logged()

    def publish_with_a_close_at(self, owner, name):
        self.counted._poller.stop(_SECONDS)  # so that this thread counts
        close = mock.Mock(side_effect=lambda: self.counted.close(0))
        with mock.patch.object(owner, name, _once(getattr(owner, name), close)):
            self.counted.publish("t", [b"a", b"b", b"c"])
        close.assert_called_once_with()

    def test_ctrl_c_while_a_bucket_begins_does_not_stop_its_time(self):
        self.counted._poller.stop(_SECONDS)  # so that this thread meets the new bucket first
        self.clock.advance(_BUCKET_MS / 1000)
        with mock.patch.object(DeliveryCounter, "_start", _once(DeliveryCounter._start, _ctrl_c)):
            self.assertRaises(KeyboardInterrupt, self.counted._ledger.tick)
        times = []
        for _ in range(3):
            self.clock.advance(5)
            times.append(self.clock.time_ms())
            self.counted.publish("t", [b"a"])

        self.assertEqual(times, [message.timestamp_ms for message in self.broker.records("t")[1:]])
        self.assert_counted_as_logged()

    def test_a_bucket_that_is_over_gives_no_stamp_although_the_clock_was_set_back_into_it(self):
        self.counted._poller.stop(_SECONDS)
        self.clock.advance(_BUCKET_MS / 1000)
        with mock.patch.object(DeliveryCounter, "_start", _once(DeliveryCounter._start, _ctrl_c)):
            self.assertRaises(KeyboardInterrupt, self.counted._ledger.tick)
        self.clock._start_ms -= _BUCKET_MS
        for _ in range(5):
            self.counted.publish("t", [b"a"])

        self.assertEqual(2, len(self.counter.stamps))
        self.assert_counted_as_logged()

    def test_what_is_sent_again_has_the_time_at_which_it_was(self):
        self.counted._poller.stop(_SECONDS)
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), nth=1, count=1)
        report = self.counted.publish("t", [b"a"])
        self.assertEqual(1, len(report.failed))
        self.clock.advance(5)
        self.assertTrue(self.counted.retry(report).ok)

        self.assertEqual(self.clock.time_ms(), self.broker.records("t")[-1].timestamp_ms)
        self.assert_counted_as_logged()

    def test_a_producer_is_counted_once_and_from_its_beginning(self):
        in_use = self.producer()
        in_use.publish("t", [b"a"])
        for producer in (self.counted, in_use):
            self.assertRaises(MisuseError, producer.count_deliveries, 60)

    def test_a_sender_with_a_limit_that_was_asked_for_again_gets_no_stamp_of_a_bucket_that_is_over(self):
        """It is put off the processor after it has found the limit."""
        stalled, go = threading.Event(), threading.Event()

        def numbers():
            yield 1_000
            stalled.set()
            go.wait(_SECONDS)
            yield from itertools.count(1_001)

        slow = numbers()
        next(slow)
        every = self.counted._ids.numbers
        self.counted._ids.numbers = slow
        sender = threading.Thread(target=self.counted.send, args=("t", b"slow"), daemon=True)
        sender.start()
        self.assertTrue(stalled.wait(_SECONDS))
        self.counted._ids.numbers = every
        self.counted._client.limits.forget("t")
        self.counted.publish("t", [b"another limit"])
        self.clock.advance(_BUCKET_MS / 1000)
        self.counted.publish("t", [b"another bucket"])
        go.set()
        sender.join(_SECONDS)

        self.assertEqual(1, self.counted.flush().delivered_count)
        self.assertEqual([2, 2], list(self.assert_counted_as_logged().values()))

    def test_time_goes_on_while_a_listener_is_at_work(self):
        began, go = threading.Event(), threading.Event()
        self.addCleanup(go.set)
        self.counted.send("t", b"heard", on_delivery=lambda delivery: (began.set(), go.wait(_SECONDS)))
        self.assertTrue(began.wait(_SECONDS))
        times = []
        for _ in range(3):
            self.clock.advance(45)
            times.append(self.clock.time_ms())
            self.counted.send("t", b"a")
        go.set()

        self.assertTrue(self.counted.flush().ok)
        self.assertEqual(times, [message.timestamp_ms for message in self.broker.records("t")[2:]])
        self.assert_counted_as_logged()


class RoomOfDeliveredTest(ProducerCase):
    """Room of delivered sends is freed once a poll comes back."""

    def served_by_hand(self, producer):
        """Messages are sent, and their callbacks run, under ``serving``; nobody has freed their room yet."""
        for _ in range(2):
            producer.send("t", b"x" * 300)
        for transport in producer._client.transports():
            transport.poll(0)

    def test_who_waits_for_room_gets_it_although_ctrl_c_came_as_it_was_offered(self):
        producer = self.producer(budget_bytes=1000, publish_timeout_seconds=3600.0)
        producer.publish("t", [b"warm"])
        sent = []
        waiter = threading.Thread(target=lambda: sent.append(producer.send("t", b"y" * 700)), daemon=True)
        with producer._ledger.serving:
            self.served_by_hand(producer)
            waiter.start()
            while not producer._budget.waiting:
                threading.Event().wait(0.001)
            with mock.patch.object(Ledger, "_offer_room", _once(Ledger._offer_room, _ctrl_c)):
                self.assertRaises(KeyboardInterrupt, producer._ledger.served)
        waiter.join(_SECONDS)

        self.assertEqual(1, len(sent))

    def test_a_send_without_patience_finds_the_room_of_a_poll_that_has_not_come_back(self):
        producer = self.producer(budget_bytes=1000, publish_timeout_seconds=0)
        producer.publish("t", [b"warm"], timeout=_SECONDS)
        with producer._ledger.serving:
            self.served_by_hand(producer)
            self.assertIsNotNone(producer.send("t", b"y" * 700))
