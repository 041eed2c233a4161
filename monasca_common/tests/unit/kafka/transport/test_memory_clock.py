# SPDX-License-Identifier: Apache-2.0
import threading

from oslotest import base

from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import VirtualClock, broker_for, reset_brokers


class VirtualClockTest(base.BaseTestCase):
    def test_both_readings_advance_together(self):
        clock = VirtualClock(start_ms=5000)
        clock.advance(1.5)
        self.assertEqual((1.5, 6500), (clock.monotonic(), clock.time_ms()))

    def test_a_free_lock_is_acquired_immediately(self):
        lock = threading.Lock()
        self.assertTrue(VirtualClock().wait(lock, 0))
        self.assertTrue(lock.locked())

    def test_waiting_ends_when_virtual_time_is_up(self):
        clock, lock = VirtualClock(), threading.Lock()
        lock.acquire()
        acquired = []
        waiter = threading.Thread(target=lambda: acquired.append(clock.wait(lock, 60)))
        waiter.start()
        while waiter.is_alive():
            clock.advance(60)
            waiter.join(0.01)
        self.assertEqual([False], acquired)

    def test_waiting_ends_when_the_lock_is_released(self):
        clock, lock = VirtualClock(), threading.Lock()
        lock.acquire()
        acquired = []
        waiter = threading.Thread(target=lambda: acquired.append(clock.wait(lock, None)))
        waiter.start()
        lock.release()
        waiter.join(50)
        self.assertEqual([True], acquired)


class BrokersTest(base.BaseTestCase):
    def test_there_is_one_broker_for_each_address_until_they_are_reset(self):
        self.addCleanup(reset_brokers)
        first = broker_for("one:9092")
        self.assertIs(first, broker_for("one:9092"))
        self.assertIsNot(first, broker_for("two:9092"))
        reset_brokers()
        self.assertIsNot(first, broker_for("one:9092"))

    def test_the_fixture_provides_a_new_broker_at_its_address(self):
        stale = broker_for("memory:9092")
        kafka = self.useFixture(MemoryKafka())
        self.assertIsNot(stale, kafka.broker)
        self.assertIs(kafka.broker, broker_for(kafka.producer_settings().connection.bootstrap_servers))

    def test_the_consumer_of_the_fixture_reads_messages_of_its_producer(self):
        kafka = self.useFixture(MemoryKafka())
        kafka.producer().publish("t", [b"v"]).raise_for_undelivered()
        self.assertEqual([b"v"], [message.value for message in kafka.consumer("t").poll(timeout=5)])
