# SPDX-License-Identifier: Apache-2.0
"""The serving thread waits a moment for callers that mostly return together."""

import threading
import time

from monasca_common.kafka.producer import serving
from monasca_common.kafka.transport.memory import MemoryProducer
from monasca_common.tests.unit.kafka.producer.producer_case import ProducerCase


class TestReturningCallers(ProducerCase):
    def setUp(self):
        super().setUp()
        self.patch(serving, "_IDLE_SECONDS", 50)
        self.publisher = self.warm_producer()
        self.queued = []  # messages, at each flush
        flush = MemoryProducer.flush

        def count(transport, timeout):
            self.queued.append(transport.queued())
            return flush(transport, timeout)

        self.patch(MemoryProducer, "flush", count)

    def expect(self, callers, seconds):
        """Have the last outcomes released ``callers``, whose time to return ends in ``seconds``."""
        thread = self.publisher._serving
        self.wait_until(lambda: thread.idle)
        thread._callers, thread._return_deadline = callers, time.monotonic() + seconds

    def publish(self):
        thread = threading.Thread(target=self.publisher.publish, args=("t", [b"a"]), daemon=True)
        thread.start()
        return thread

    def test_one_flush_serves_all_callers_that_the_last_outcomes_released(self):
        self.expect(callers=2, seconds=50)
        first = self.publish()
        self.wait_until(lambda: self.publisher._table.waiters)
        self.assertEqual([], self.queued)
        for thread in (first, self.publish()):
            thread.join(50)
        self.assertEqual([2], self.queued)

    def test_a_caller_does_not_wait_for_one_that_is_late(self):
        self.expect(callers=2, seconds=0)
        self.publish().join(50)
        self.assertEqual([1], self.queued)

    def test_a_caller_that_does_not_return_is_expected_once(self):
        self.expect(callers=2, seconds=0.001)
        self.publish().join(50)
        self.assertLessEqual(self.publisher._serving._callers, 1)
