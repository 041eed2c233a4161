# SPDX-License-Identifier: Apache-2.0
"""Slots of methods and destinations: which notification is sent now, and when the next one can be sent."""

import contextlib
import threading

from oslotest import base

from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification.slots import Slots, TenantSlots

_SECONDS = 50  # for a machine under load


class SlotsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.slots = Slots(2, 8, 600.0, self.clock)
        self.threads = TenantSlots(1000)
        self.open = self.enterContext(contextlib.ExitStack())

    def slot(self, method, destination, notification, tenant="t1"):
        return self.slots.slot(method, destination, notification, tenant, self.threads)

    def enter(self, notification, method="m", destination="", tenant="t1"):
        return self.begun(self.open.enter_context(self.slot(method, destination, notification, tenant)))

    def begun(self, slot):
        """Start sending the notification of the slot now."""
        slot.sent_since = self.clock.monotonic()
        return slot

    def sends(self, *seconds, failed=False):
        """Send notifications one after another, each for this time."""
        for each in seconds:
            with self.slot("m", "", "n") as slot:
                self.begun(slot)
                self.clock.advance(each)
                slot.failed = failed

    def hang(self):
        self.assertEqual([None, None], [self.enter(name).turn_seconds for name in ("a", "b")])
        self.clock.advance(10)

    def test_a_hanging_receiver_uses_only_its_own_slots(self):
        self.hang()
        self.assertIsNotNone(self.enter("c").turn_seconds)
        self.assertIsNone(self.enter("d", "another").turn_seconds)

    def test_waiting_notifications_are_spaced_by_the_time_that_the_receiver_needs(self):
        self.hang()
        turns = [self.enter(f"n{number}").turn_seconds for number in range(3)]
        self.assertEqual([5.0, 10.0, 15.0], turns)  # two concurrent notifications, ten seconds each

    def test_a_wait_for_a_slot_is_at_most_the_longest_wait_between_attempts(self):
        self.hang()
        turns = [self.enter(f"n{number}").turn_seconds for number in range(200)]
        self.assertEqual(600.0, max(turns))

    def test_many_methods_of_one_host_share_its_slots(self):
        turns = [self.enter(f"n{number}", f"m{number}", "hangs").turn_seconds for number in range(8)]
        self.clock.advance(10)
        self.assertEqual([None] * 8, turns)
        self.assertIsNotNone(self.enter("more", "another", "hangs").turn_seconds)
        self.assertIsNone(self.enter("elsewhere", "another", "quick").turn_seconds)

    def test_a_host_has_a_quarter_of_its_slots_after_a_hanging_attempt_until_a_success(self):
        self.send_to_host(10.0, failed=True)
        self.assertEqual([True, True, False], self.find_slots(3))
        self.send_to_host(0.1, failed=False)
        self.assertEqual([True] * 8, self.find_slots(8))

    def test_a_quick_failure_of_one_method_does_not_reduce_the_slots_of_its_host(self):
        self.send_to_host(0.1, failed=True)
        self.assertEqual([True] * 8, self.find_slots(8))

    def send_to_host(self, seconds, *, failed):
        with self.slot("first", "host", "n") as slot:
            self.begun(slot)
            self.clock.advance(seconds)
            slot.failed = failed

    def find_slots(self, count):
        """Return, for this number of methods in turn, whether each finds a free slot at the host."""
        with contextlib.ExitStack() as stack:
            entered = (self.slot(f"m{number}", "host", f"n{number}") for number in range(count))
            found = []
            for each in entered:
                found.append(self.begun(stack.enter_context(each)).turn_seconds is None)
                self.clock.advance(1)
            return found

    # Rule 57
    def test_the_time_before_sending_is_not_part_of_the_duration_of_an_attempt(self):
        for _ in range(9):
            with self.slot("m", "", "n") as slot:
                self.clock.advance(10)  # time spent in the ledger
                self.begun(slot)
        self.hang()
        self.assertEqual([5.0, 10.0], [self.enter(f"n{number}").turn_seconds for number in range(2)])

    def test_a_notification_in_progress_is_not_sent_concurrently(self):
        self.assertIsNone(self.enter("a").turn_seconds)
        self.assertGreaterEqual(self.enter("a").turn_seconds, 1.0)

    def test_a_method_has_a_single_slot_after_a_failure_until_a_success(self):
        self.sends(10.0, failed=True)
        self.assertIsNone(self.enter("a").turn_seconds)
        self.assertIsNotNone(self.enter("b").turn_seconds)
        self.open.pop_all().close()
        self.sends(0.001)
        self.hang()

    def test_an_interrupted_send_has_failed_and_frees_its_slot(self):
        with contextlib.suppress(ValueError), self.slot("m", "", "a") as slot:
            self.begun(slot)
            self.clock.advance(10)
            raise ValueError
        self.assertIsNone(self.enter("b").turn_seconds)
        self.assertIsNotNone(self.enter("c").turn_seconds)

    def test_a_notification_waits_for_a_slot_of_a_quick_receiver(self):
        quick = self.slot("m", "", "a"), self.slot("m", "", "b")
        for each in quick:
            self.assertIsNone(each.__enter__().turn_seconds)
        found = []

        def wait():
            with self.slot("m", "", "c") as slot:
                found.append(slot.turn_seconds)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        while not self.slots._queues["method", "m"].waiting:
            threading.Event().wait(0.001)
        quick[0].__exit__(None, None, None)
        waiting.join(_SECONDS)
        self.assertEqual([None], found)
        quick[1].__exit__(None, None, None)

    def test_a_slot_is_released_after_sending_and_the_notification_after_recording(self):
        slot = self.enter("a")
        self.enter("b")
        self.clock.advance(10)
        self.slots.leave(slot)
        self.assertIsNotNone(self.enter("a").turn_seconds)
        self.assertIsNone(self.enter("c").turn_seconds)

    def test_unused_queues_are_removed(self):
        for number in range(10_002):
            with self.slot(f"m{number}", f"d{number}", "n"):
                pass
        self.assertLess(len(self.slots._queues), 10_010)

    def test_tenants_share_the_threads_even_if_many_hosts_of_one_tenant_hang(self):
        self.threads = TenantSlots(32)
        hanging = [self.enter(f"n{each}", f"m{each}", f"host{each}").turn_seconds for each in range(16)]
        self.clock.advance(10)
        more = [self.enter(f"n{each}", f"m{each}", f"host{each}").turn_seconds for each in range(16, 100)]
        self.assertEqual(([None] * 16, 0), (hanging, more.count(None)))
        others = [self.enter(f"o{each}", f"o{each}", f"other{each}", f"t{each}").turn_seconds for each in range(2, 10)]
        self.assertEqual([None] * 8, others)

    def test_waiting_notifications_of_a_tenant_are_spaced_by_the_time_that_its_receivers_need(self):
        self.threads = TenantSlots(4)
        for each in range(2):
            self.enter(f"n{each}", f"m{each}", f"host{each}")
        self.clock.advance(10)
        turns = [self.enter(f"more{each}", f"m{each}", f"other{each}").turn_seconds for each in range(2, 5)]
        self.assertEqual([5.0, 10.0, 15.0], turns)


class TenantSlotsTest(base.BaseTestCase):
    def test_slots_are_limited_however_many_tenants_hold_one(self):
        slots = TenantSlots(4)
        acquired = [slots.acquire(f"t{number}", 0.0) for number in range(100)]
        self.assertEqual([True] * 16 + [False] * 84, acquired)
        slots.release("t0")
        self.assertTrue(slots.acquire("t99", 0.0))

    def test_without_a_free_slot_of_the_tenants_a_notification_is_delayed(self):
        slots = TenantSlots(1)
        for number in range(4):
            slots.acquire(f"t{number}", 0.0)
        slots_ = Slots(2, 8, 600.0, VirtualClock())
        with slots_.slot("m", "", "n", "another", slots) as slot:
            self.assertEqual(1.0, slot.turn_seconds)
