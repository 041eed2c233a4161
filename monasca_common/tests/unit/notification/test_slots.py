# SPDX-License-Identifier: Apache-2.0
"""Places at methods and destinations: who may send now, and when it is another's turn."""

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
        """Its notification is being sent since now."""
        slot.sent_since = self.clock.monotonic()
        return slot

    def sends(self, *seconds, failed=False):
        """One notification after the other, each of which takes so long."""
        for each in seconds:
            with self.slot("m", "", "n") as slot:
                self.begun(slot)
                self.clock.advance(each)
                slot.failed = failed

    def hang(self):
        self.assertEqual([None, None], [self.enter(name).turn_seconds for name in ("a", "b")])
        self.clock.advance(10)

    def test_a_receiver_that_hangs_has_no_more_than_its_slots_and_another_has_its_own(self):
        self.hang()
        self.assertIsNotNone(self.enter("c").turn_seconds)
        self.assertIsNone(self.enter("d", "another").turn_seconds)

    def test_turns_follow_each_other_at_the_pace_of_the_receiver(self):
        self.hang()
        turns = [self.enter(f"n{number}").turn_seconds for number in range(3)]
        self.assertEqual([5.0, 10.0, 15.0], turns)  # two at once, ten seconds each

    def test_no_turn_is_farther_ahead_than_the_longest_wait_between_two_attempts(self):
        self.hang()
        turns = [self.enter(f"n{number}").turn_seconds for number in range(200)]
        self.assertEqual(600.0, max(turns))

    def test_many_methods_at_one_host_have_no_more_than_its_slots(self):
        turns = [self.enter(f"n{number}", f"m{number}", "hangs").turn_seconds for number in range(8)]
        self.clock.advance(10)
        self.assertEqual([None] * 8, turns)
        self.assertIsNotNone(self.enter("more", "another", "hangs").turn_seconds)
        self.assertIsNone(self.enter("elsewhere", "another", "quick").turn_seconds)

    def test_a_host_where_an_attempt_hung_has_a_quarter_of_its_slots_until_it_takes_one(self):
        self.send_to_host(10.0, failed=True)
        self.assertEqual([True, True, False], self.find_slots(3))
        self.send_to_host(0.1, failed=False)
        self.assertEqual([True] * 8, self.find_slots(8))

    def test_a_failure_of_one_method_that_took_no_time_takes_no_slot_from_its_host(self):
        self.send_to_host(0.1, failed=True)
        self.assertEqual([True] * 8, self.find_slots(8))

    def send_to_host(self, seconds, *, failed):
        with self.slot("first", "host", "n") as slot:
            self.begun(slot)
            self.clock.advance(seconds)
            slot.failed = failed

    def find_slots(self, count):
        """Which of so many methods find one at the host, one after the other."""
        with contextlib.ExitStack() as stack:
            entered = (self.slot(f"m{number}", "host", f"n{number}") for number in range(count))
            found = []
            for each in entered:
                found.append(self.begun(stack.enter_context(each)).turn_seconds is None)
                self.clock.advance(1)
            return found

    # Rule 57
    def test_what_precedes_sending_is_not_the_receivers_time(self):
        for _ in range(9):
            with self.slot("m", "", "n") as slot:
                self.clock.advance(10)  # in the ledger
                self.begun(slot)
        self.hang()
        self.assertEqual([5.0, 10.0], [self.enter(f"n{number}").turn_seconds for number in range(2)])

    def test_a_notification_in_progress_is_not_sent_concurrently(self):
        self.assertIsNone(self.enter("a").turn_seconds)
        self.assertGreaterEqual(self.enter("a").turn_seconds, 1.0)

    def test_one_that_failed_last_has_a_single_slot_until_one_is_taken(self):
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

    def test_a_slot_at_a_quick_receiver_is_waited_for(self):
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

    def test_a_slot_is_free_after_sending_and_the_subject_after_recording(self):
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

    def test_tenants_share_the_threads_however_many_hosts_of_one_hang(self):
        self.threads = TenantSlots(32)
        hanging = [self.enter(f"n{each}", f"m{each}", f"host{each}").turn_seconds for each in range(16)]
        self.clock.advance(10)
        more = [self.enter(f"n{each}", f"m{each}", f"host{each}").turn_seconds for each in range(16, 100)]
        self.assertEqual(([None] * 16, 0), (hanging, more.count(None)))
        others = [self.enter(f"o{each}", f"o{each}", f"other{each}", f"t{each}").turn_seconds for each in range(2, 10)]
        self.assertEqual([None] * 8, others)

    def test_turns_of_a_tenant_follow_each_other_at_the_pace_of_its_receivers(self):
        self.threads = TenantSlots(4)
        for each in range(2):
            self.enter(f"n{each}", f"m{each}", f"host{each}")
        self.clock.advance(10)
        turns = [self.enter(f"more{each}", f"m{each}", f"other{each}").turn_seconds for each in range(2, 5)]
        self.assertEqual([5.0, 10.0, 15.0], turns)


class TenantSlotsTest(base.BaseTestCase):
    def test_slots_are_bounded_however_many_tenants_hold_one(self):
        slots = TenantSlots(4)
        acquired = [slots.acquire(f"t{number}", 0.0) for number in range(100)]
        self.assertEqual([True] * 16 + [False] * 84, acquired)
        slots.release("t0")
        self.assertTrue(slots.acquire("t99", 0.0))

    def test_a_turn_is_given_while_no_slot_is_left(self):
        slots = TenantSlots(1)
        for number in range(4):
            slots.acquire(f"t{number}", 0.0)
        slots_ = Slots(2, 8, 600.0, VirtualClock())
        with slots_.slot("m", "", "n", "another", slots) as slot:
            self.assertEqual(1.0, slot.turn_seconds)
