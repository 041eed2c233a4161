# SPDX-License-Identifier: Apache-2.0
"""Known defects of the producer, which issue 28 rebuilds. Each test fails until then, and its decorator is removed."""

import threading
import time
import unittest

import fixtures
from oslotest import base

from monasca_common.kafka.errors import QueueFull
from monasca_common.kafka.testing import Delay, Fail, MemoryKafka
from monasca_common.kafka.transport.memory import MemoryProducer

BUDGET = 20


class KnownDefectsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.broker = self.kafka.broker
        self.broker.create_topic("t", 1)

    def producer(self, **changes):
        producer = self.kafka.producer(budget_messages=BUDGET, linger_ms=0, **changes)
        producer.publish("t", [b"first"], timeout=30).raise_for_undelivered()
        return producer

    @unittest.expectedFailure
    def test_a_bulk_larger_than_the_budget_is_delivered_by_retries_or_not_retriable(self):
        """Issue 28: each retry reports QueueFull again."""
        producer = self.producer()
        report = producer.publish("t", [b""] * (BUDGET + 1), timeout=0.01)
        for _ in range(3):
            report = producer.retry(report, timeout=0.01) if report.retriable else report
        self.assertFalse(report.retriable)

    @unittest.expectedFailure
    def test_a_report_larger_than_the_budget_of_the_producer_that_retries_it_is_delivered(self):
        """Issue 28: a retry hands over all that is undelivered at once, or nothing."""
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=None)
        report = self.kafka.producer().publish("t", [b""] * (2 * BUDGET), timeout=30)
        self.broker.clear_faults()
        self.assertEqual(2 * BUDGET, len(report.failed))
        self.assertTrue(self.producer().retry(report, timeout=0.5).ok)

    @unittest.expectedFailure
    def test_an_exception_of_a_signal_handler_within_a_retry_leaves_no_message_on_its_way(self):
        """Issue 28: messages that were not handed over yet stay "on their way", and no retry sends them."""
        produce, calls = MemoryProducer.produce, []

        def interrupted(*arguments):
            calls.append(arguments)
            if len(calls) == 1 + 10 + 3:
                raise KeyboardInterrupt
            return produce(*arguments)

        self.useFixture(fixtures.MonkeyPatch(f"{MemoryProducer.__module__}.MemoryProducer.produce", interrupted))
        producer = self.producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=None)
        report = producer.publish("t", [b"%d" % number for number in range(10)], timeout=30)
        self.broker.clear_faults()
        self.assertEqual((10, 11), (len(report.failed), len(calls)))
        self.assertRaises(KeyboardInterrupt, producer.retry, report, timeout=1)
        self.assertTrue(producer.retry(report, timeout=1).ok)

    @unittest.expectedFailure
    def test_sends_whose_listener_was_not_called_yet_take_room(self):
        """Issue 28: calls of a slow listener are queued without a bound."""
        producer = self.producer(publish_timeout_seconds=0.2)
        released = threading.Event()
        self.addCleanup(released.set)
        sent = 0
        try:
            for _ in range(5 * BUDGET):
                producer.send("t", b"", on_delivery=lambda _: released.wait(30))
                sent += 1
        except QueueFull:
            pass
        self.assertLess(sent, 3 * BUDGET)

    @unittest.expectedFailure
    def test_a_send_that_waits_gets_the_room_that_is_free_beside_undelivered_messages(self):
        """Issue 28: with three quarters of the budget held for the next flush, a sender is not woken."""
        producer = self.producer(publish_timeout_seconds=2.0)
        held = BUDGET * 4 // 5
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=None)
        for _ in range(held):
            producer.send("t", b"refused")
        while producer.health().oldest_unacknowledged_seconds:
            threading.Event().wait(0.001)
        self.broker.clear_faults()
        self.broker.inject("produce", Delay(0.05), count=None)
        for _ in range(BUDGET - held):
            producer.send("t", b"slow")
        began = time.monotonic()
        producer.send("t", b"last")
        self.assertLess(time.monotonic() - began, 1.0)
