# SPDX-License-Identifier: Apache-2.0
import math
import threading

from oslotest import base

from monasca_common.kafka.clock import Signal, SystemClock, VirtualClock, check_seconds
from monasca_common.kafka.errors import WrongType


class SystemClockTest(base.BaseTestCase):
    def test_a_wait_can_be_unlimited(self):
        for endless in (None, math.inf, 1e300):
            self.assertTrue(SystemClock().wait(threading.Lock(), endless))

    def test_a_wait_after_its_deadline_only_checks_the_condition(self):
        taken = threading.Lock()
        with taken:
            self.assertFalse(SystemClock().wait(taken, -1))


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


class CheckSecondsTest(base.BaseTestCase):
    def test_a_timeout_has_the_limits_of_the_clients(self):
        self.assertEqual([0, 0, 2.5, 1e6, 1e6], [check_seconds(each) for each in (-1, 0, 2.5, 1e300, math.inf)])

    def test_a_timeout_is_a_number(self):
        for timeout in ("1", None, math.nan, [1]):
            self.assertRaises(WrongType, check_seconds, timeout)


class SignalTest(base.BaseTestCase):
    def test_a_signal_set_before_a_wait_wakes_it_once(self):
        signal = Signal()
        signal.set()
        signal.set()
        self.assertEqual([True, False], [signal.wait(SystemClock(), 0) for _ in range(2)])

    def test_an_unlimited_wait_ends_when_the_signal_is_set(self):
        signal = Signal()
        setter = threading.Thread(target=signal.set)
        setter.start()
        self.assertTrue(signal.wait(SystemClock(), None))
        setter.join()

    def test_a_signal_waits_in_the_time_of_its_clock(self):
        clock = VirtualClock()
        woken = []
        waiter = threading.Thread(target=lambda: woken.append(Signal().wait(clock, 3600)))
        waiter.start()
        while waiter.is_alive():
            clock.advance(1800)
            waiter.join(0.001)
        self.assertEqual([False], woken)

    def test_threads_can_set_a_signal_concurrently(self):
        signal = Signal()
        failures = []

        def set_often():
            try:
                for _ in range(2000):
                    signal.set()
            except BaseException as error:
                failures.append(error)

        setters = [threading.Thread(target=set_often) for _ in range(4)]
        for setter in setters:
            setter.start()
        while any(setter.is_alive() for setter in setters):
            signal.wait(SystemClock(), 0.001)
        self.assertEqual([], failures)
