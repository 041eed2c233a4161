# SPDX-License-Identifier: Apache-2.0
"""Slots of methods, hosts and tenants: which notifications are sent concurrently."""

import contextlib
import threading

from oslotest import base

from monasca_common.notification import slots
from monasca_common.notification.slots import Slots

_SECONDS = 50  # for a machine under load


class SlotsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.patch(slots, "_WAIT_SECONDS", 0.01)
        self.slots = Slots(2, 8, 1000)
        self.open = self.enterContext(contextlib.ExitStack())

    def slot(self, method, destination, notification, tenant="t1"):
        return self.slots.slot(method, destination, notification, tenant)

    def enters(self, notification, method="m", destination="", tenant="t1"):
        """Return whether the notification finds a free slot, which it keeps."""
        return self.open.enter_context(self.slot(method, destination, notification, tenant)) is not None

    def send(self, method="first", destination="", *, hangs):
        with self.slot(method, destination, "n") as slot:
            slot.hangs = hangs

    def test_a_method_uses_only_its_own_slots(self):
        self.assertEqual([True, True, False], [self.enters(name) for name in ("a", "b", "c")])
        self.assertTrue(self.enters("d", "another"))

    def test_many_methods_of_one_host_share_its_slots(self):
        self.assertEqual([True] * 8, [self.enters(f"n{number}", f"m{number}", "hangs") for number in range(8)])
        self.assertFalse(self.enters("more", "another", "hangs"))
        self.assertTrue(self.enters("elsewhere", "another", "quick"))

    def test_receivers_have_a_quarter_of_their_slots_after_a_hanging_attempt_until_another_ends(self):
        self.send("m", "host", hangs=True)
        self.assertEqual([True, False], [self.enters(name) for name in ("a", "b")])
        self.assertEqual([True, True, False], [self.enters(f"n{each}", f"m{each}", "host") for each in range(3)])
        self.open.pop_all().close()
        self.send("m", "host", hangs=False)
        self.assertEqual([True] * 8, [self.enters(f"n{each}", f"m{each}", "host") for each in range(8)])

    def test_an_attempt_without_an_outcome_does_not_change_the_slots(self):
        self.send("m", hangs=True)
        with contextlib.suppress(ValueError), self.slot("m", "", "a"):
            raise ValueError
        self.assertEqual([True, False], [self.enters(name) for name in ("b", "c")])

    def test_a_notification_in_progress_is_not_sent_concurrently(self):
        self.assertEqual([True, False], [self.enters("a"), self.enters("a")])

    def test_a_notification_waits_for_a_slot(self):
        self.patch(slots, "_WAIT_SECONDS", _SECONDS)
        first, _ = quick = self.slot("m", "", "a"), self.slot("m", "", "b")
        for each in quick:
            self.open.enter_context(each)
        found = []

        def wait():
            with self.slot("m", "", "c") as slot:
                found.append(slot)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        while not self.slots._used["waiting", "m"]:
            threading.Event().wait(0.001)
        first.__exit__(None, None, None)
        self.open.pop_all().pop_all()
        waiting.join(_SECONDS)
        self.assertEqual(1, len(found))
        self.assertIsNotNone(found[0])

    def test_no_notification_waits_for_a_receiver_that_hangs(self):
        self.patch(slots, "_WAIT_SECONDS", _SECONDS)
        self.send("m", hangs=True)
        self.assertEqual([True, False], [self.enters(name) for name in ("a", "b")])

    def test_only_slots_in_use_are_kept(self):
        for number in range(100):
            with self.slot(f"m{number}", f"d{number}", "n"):
                pass
        self.assertEqual((0, 0), (len(self.slots._used), len(self.slots._used_threads)))

    def test_tenants_share_the_threads_even_if_many_hosts_of_one_tenant_hang(self):
        self.slots = Slots(2, 8, 32)
        self.assertEqual([True] * 16, [self.enters(f"n{each}", f"m{each}", f"host{each}") for each in range(16)])
        more = [self.enters(f"n{each}", f"m{each}", f"host{each}") for each in range(16, 100)]
        self.assertNotIn(True, more)
        others = [self.enters(f"o{each}", f"o{each}", f"other{each}", f"t{each}") for each in range(2, 10)]
        self.assertEqual([True] * 8, others)
