# SPDX-License-Identifier: Apache-2.0
import fixtures
from oslotest import base

from monasca_common.kafka.transport.memory.clock import VirtualClock
from monasca_common.pipeline.evaluate.watermark import ACCEPTED_AFTER_SECONDS, LONGEST_STEP_MS, SteadyTime

HOUR_MS = 3_600_000


class SteadyTimeTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.logged = self.useFixture(fixtures.FakeLogger())
        self.clock, self.step_ms = VirtualClock(start_ms=10 * HOUR_MS), 0
        self.steady = SteadyTime(self.clock)
        self.assertEqual(10 * HOUR_MS, self.look(0))

    def look(self, seconds):
        """The time of a look after ``seconds``."""
        self.clock.advance(seconds)
        return self.steady.time_ms(self.clock.time_ms() + self.step_ms)

    def test_a_small_step_is_followed_and_a_large_one_is_not(self):
        self.step_ms = LONGEST_STEP_MS
        self.assertEqual(self.clock.time_ms() + 1000 + self.step_ms, self.look(1))
        self.step_ms += LONGEST_STEP_MS + 1
        self.assertEqual(self.clock.time_ms() + 1000 + LONGEST_STEP_MS, self.look(1))

    def test_a_clock_that_steps_an_hour_and_back_is_never_followed(self):
        for step_ms in (HOUR_MS, HOUR_MS, -HOUR_MS, 0):
            self.step_ms = step_ms
            self.assertEqual(self.clock.time_ms() + 1000, self.look(1))
            self.steady.compare([self.clock.time_ms()])
        self.assertEqual(1, self.logged.output.count("stepped by 3600 s"))

    def test_a_step_is_followed_once_a_record_has_its_time(self):
        self.step_ms = HOUR_MS
        self.look(1)
        self.steady.compare([self.clock.time_ms() + HOUR_MS - LONGEST_STEP_MS])
        self.assertEqual(self.clock.time_ms() + HOUR_MS + 1000, self.look(1))

    def test_a_step_is_followed_after_ten_minutes_without_records(self):
        self.step_ms = HOUR_MS
        self.look(1)
        self.assertEqual(10 * HOUR_MS + 601_000, self.look(ACCEPTED_AFTER_SECONDS))
        self.assertEqual(11 * HOUR_MS + 602_000, self.look(1))

    def test_records_of_the_time_before_the_step_postpone_that(self):
        self.step_ms = HOUR_MS
        self.look(ACCEPTED_AFTER_SECONDS)
        self.steady.compare([self.clock.time_ms()])
        self.assertEqual(self.clock.time_ms() + 600_000, self.look(ACCEPTED_AFTER_SECONDS))
