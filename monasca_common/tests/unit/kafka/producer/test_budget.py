# SPDX-License-Identifier: Apache-2.0
"""Use of a producer's budget, and distribution of free room to callers."""

import threading
import time

from oslotest import base

from monasca_common.kafka.errors import QueueFull
from monasca_common.kafka.testing import Delay, Fail, MemoryKafka

BUDGET = 20


class BudgetTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.broker = self.kafka.broker
        self.broker.create_topic("t", 1)

    def producer(self, **changes):
        producer = self.kafka.producer(budget_messages=BUDGET, linger_ms=0, **changes)
        producer.publish("t", [b"first"], timeout=30).raise_for_undelivered()
        return producer

    def test_a_bulk_larger_than_the_budget_is_delivered_by_a_retry(self):
        producer = self.producer()
        report = producer.publish("t", [b""] * (BUDGET + 1), timeout=0.01)
        self.assertEqual((BUDGET + 1, True), (len(report.failed), report.retriable))
        self.assertIn(f"no room for {BUDGET + 1} messages", str(report.failed[0].error))
        report = producer.retry(report, timeout=30)
        self.assertEqual((True, False), (report.ok, report.retriable))

    def test_a_report_larger_than_the_budget_of_the_producer_that_retries_it_is_delivered(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=None)
        report = self.kafka.producer().publish("t", [b""] * (2 * BUDGET), timeout=30)
        self.broker.clear_faults()
        self.assertEqual(2 * BUDGET, len(report.failed))
        self.assertTrue(self.producer().retry(report, timeout=0.5).ok)

    def test_sends_take_room_until_their_listener_is_called(self):
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

    def test_undelivered_sends_are_not_outstanding_although_they_take_room(self):
        producer = self.producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        producer.send("t", b"refused")
        while producer.health().oldest_unacknowledged_seconds:
            threading.Event().wait(0.001)
        health = producer.health()
        self.assertEqual((0, 0), (health.outstanding_messages, health.outstanding_bytes))
        self.assertEqual(1, len(producer.flush(30).failed))

    def test_a_waiting_send_receives_the_room_that_undelivered_messages_free(self):
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
