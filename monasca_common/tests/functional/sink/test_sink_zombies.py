# SPDX-License-Identifier: Apache-2.0
"""Several writers of the same partitions, of which the stored offset permits one."""

import time

from monasca_common.tests.functional.persister.persister_case import QUICK_SESSION_SECONDS
from monasca_common.tests.functional.sink.sink_case import SinkCase
from monasca_common.tests.periodic import periodic

MESSAGES = 600
_FROZEN_SECONDS = QUICK_SESSION_SECONDS + 1


class TestSinkZombies(SinkCase):
    database = "postgresql"
    session_seconds = QUICK_SESSION_SECONDS

    def three_owners(self, *mutants):
        """Return the verdict, and the number of skipped rows, after one of three owners was frozen."""
        self.drop_key()
        slow = "storage.before_write=sleep:0.02"
        sinks = [self.start(name=f"sink-{number}", owns=True, mutants=mutants, fail_points=slow) for number in range(3)]
        self.wait_until(lambda: all(sink.worker().get("partitions") for sink in sinks), what="the start")
        for first in range(0, MESSAGES, 40):
            self.publish(range(first, first + 40))
        (frozen,) = self.workers(sinks[0])
        frozen.suspend()
        time.sleep(_FROZEN_SECONDS)
        frozen.resume()
        self.wait_until(lambda: all(self.is_through(each) for each in sinks), what="the end of the log")
        skipped = sum(sink.counter("rows_total", outcome="skipped") for sink in sinks)
        for sink in sinks:
            self.assert_ends_in_order(sink)
        return self.verdict(), skipped

    # Rule 23
    def test_three_members_with_all_partitions_apply_each_row_once(self):
        verdict, skipped = self.three_owners()
        verdict.raise_unless_clean()
        self.assert_states()
        self.assertGreater(skipped, 0, "they never met")

    # Rule 23
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_without_the_fence_applies_rows_twice(self):
        verdict, _ = self.three_owners("no_fence")
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))
