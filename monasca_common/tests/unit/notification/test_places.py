# SPDX-License-Identifier: Apache-2.0
"""Places at methods: who may send now, and when it is another's turn."""

import contextlib
import threading

from oslotest import base

from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification.places import MethodPlaces

_SECONDS = 50  # for a machine under load


class PlacesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.places = MethodPlaces(2, 600.0, self.clock)
        self.open = self.enterContext(contextlib.ExitStack())

    def enter(self, notice, method="m"):
        return self.open.enter_context(self.places.place(method, notice))

    def sends(self, *seconds, failed=False):
        """One notice after the other, each of which takes so long."""
        for each in seconds:
            with self.places.place("m", "n") as place:
                self.clock.advance(each)
                place.failed = failed

    def hang(self):
        self.assertEqual([None, None], [self.enter(name).turn_seconds for name in ("a", "b")])
        self.clock.advance(10)

    def test_a_receiver_that_hangs_has_no_more_than_its_places_and_another_has_its_own(self):
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

    def test_a_notice_that_is_being_sent_is_not_sent_at_once_again(self):
        self.assertIsNone(self.enter("a").turn_seconds)
        self.assertGreaterEqual(self.enter("a").turn_seconds, 1.0)

    def test_one_that_failed_last_has_a_single_place_until_one_is_taken(self):
        self.sends(10.0, failed=True)
        self.assertIsNone(self.enter("a").turn_seconds)
        self.assertIsNotNone(self.enter("b").turn_seconds)
        self.open.pop_all().close()
        self.sends(0.001)
        self.hang()

    def test_who_is_interrupted_has_failed_and_leaves_its_place(self):
        with contextlib.suppress(ValueError), self.places.place("m", "a"):
            self.clock.advance(10)
            raise ValueError
        self.assertIsNone(self.enter("b").turn_seconds)
        self.assertIsNotNone(self.enter("c").turn_seconds)

    def test_a_place_at_a_quick_receiver_is_waited_for(self):
        quick = self.places.place("m", "a"), self.places.place("m", "b")
        for each in quick:
            self.assertIsNone(each.__enter__().turn_seconds)
        found = []

        def wait():
            with self.places.place("m", "c") as place:
                found.append(place.turn_seconds)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        while not self.places._methods["m"].waiting:
            threading.Event().wait(0.001)
        quick[0].__exit__(None, None, None)
        waiting.join(_SECONDS)
        self.assertEqual([None], found)
        quick[1].__exit__(None, None, None)

    def test_a_place_is_left_once_it_is_sent_and_the_notice_stays_its_own_until_it_is_recorded(self):
        place = self.enter("a")
        self.enter("b")
        self.clock.advance(10)
        self.places.leave("m", place)
        self.assertIsNotNone(self.enter("a").turn_seconds)
        self.assertIsNone(self.enter("c").turn_seconds)

    def test_methods_that_nobody_sends_to_are_forgotten_in_the_end(self):
        for number in range(10_001):
            with self.places.place(f"m{number}", "n"):
                pass
        self.assertEqual(1, len(self.places._methods))
