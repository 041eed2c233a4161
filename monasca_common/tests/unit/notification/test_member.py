# SPDX-License-Identifier: Apache-2.0
"""What a member's threads do while the database is unavailable."""

from oslotest import base

from monasca_common.kafka import RetryLater
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification.member import PausedHandler


class Stopping:
    """``waits``: those that were waited, which takes no time here but on the clock."""

    def __init__(self, clock):
        self._clock = clock
        self.waits = []

    def wait(self, seconds):
        self.waits.append(seconds)
        self._clock.advance(seconds)


class PausedHandlerTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.stopping = Stopping(self.clock)
        self.outcomes = []
        self.handler = PausedHandler(self.handle, self.clock, self.stopping)

    def handle(self, message):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return [message]

    def call(self, *outcomes):
        self.outcomes += outcomes
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self.assertRaises(type(outcome), self.handler, "m")
            else:
                self.assertEqual(["m"], self.handler("m"))

    def test_while_the_database_is_unavailable_each_call_waits_and_the_waits_grow(self):
        self.call(*(RetryLater() for _ in range(12)))
        self.assertEqual(11, len(self.stopping.waits))
        self.assertGreater(self.stopping.waits[-1], self.stopping.waits[0])
        self.assertLessEqual(max(self.stopping.waits), 3.0)

    def test_after_a_success_nothing_waits(self):
        self.call(RetryLater(), "done", "done")
        self.assertEqual(1, len(self.stopping.waits))

    def test_what_is_not_due_yet_pauses_no_other(self):
        self.call(RetryLater(after=5.0), "done")
        self.assertEqual([], self.stopping.waits)
