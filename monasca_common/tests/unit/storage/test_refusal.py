# SPDX-License-Identifier: Apache-2.0

import math
import random

from oslotest import base

from monasca_common.storage.refusal import find_refused


class FindRefusedTest(base.BaseTestCase):
    def search(self, count, bad):
        self.trials = 0

        def trial(start, stop):
            self.trials += 1
            inside = [position for position in bad if start <= position < stop]
            return f"row {inside[0]}" if inside else None

        return find_refused(count, trial)

    def test_all_that_are_refused_are_found_each_with_its_reason(self):
        chance = random.Random(1)
        for count in (1, 2, 3, 7, 64, 1000):
            for _ in range(20):
                bad = sorted(chance.sample(range(count), chance.randint(0, min(count, 9))))
                self.assertEqual({position: f"row {position}" for position in bad}, self.search(count, bad))

    def test_one_in_many_costs_few_trials(self):
        self.search(20_000, [12_345])
        self.assertLessEqual(self.trials, 2 * math.ceil(math.log2(20_000)) + 1)

    def test_rows_that_are_refused_only_together_end_the_search(self):
        self.assertEqual({}, find_refused(8, lambda start, stop: "together" if stop - start > 1 else None))

    def test_no_rows_need_no_trial(self):
        self.assertEqual(({}, 0), (self.search(0, []), self.trials))
