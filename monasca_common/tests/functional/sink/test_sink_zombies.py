# SPDX-License-Identifier: Apache-2.0
"""Several writers of the same partitions, of which the stored offset permits one."""

from monasca_common.tests.functional.persister.test_persister_zombies import ZombieCase
from monasca_common.tests.functional.sink.sink_case import SinkCase
from monasca_common.tests.periodic import periodic

MESSAGES = 600


class TestSinkZombies(SinkCase, ZombieCase):
    def publish_all(self):
        for first in range(0, MESSAGES, 40):
            self.publish(range(first, first + 40))

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
