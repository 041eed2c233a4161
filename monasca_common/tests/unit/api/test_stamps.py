# SPDX-License-Identifier: Apache-2.0
import hashlib
import os

from oslotest import base

from monasca_common.api.stamps import Stamps

_DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_123


def digest(number):
    return hashlib.sha256(b"%d" % number).digest()[:16]


class StampsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.stamps = Stamps(slots=64)

    def test_a_digest_keeps_the_time_of_its_first_request(self):
        self.assertEqual(NOW_MS, self.stamps.first_ms(digest(1), NOW_MS))
        self.assertEqual(NOW_MS + 1, self.stamps.first_ms(digest(2), NOW_MS + 1))
        self.assertEqual(NOW_MS, self.stamps.first_ms(digest(1), NOW_MS + 5000))

    def test_a_clock_that_is_set_back_changes_nothing(self):
        self.stamps.first_ms(digest(1), NOW_MS)
        self.assertEqual(NOW_MS, self.stamps.first_ms(digest(1), NOW_MS - 5000))

    def test_after_a_day_it_is_a_new_request(self):
        self.stamps.first_ms(digest(1), NOW_MS)
        self.assertEqual(NOW_MS + _DAY_MS, self.stamps.first_ms(digest(1), NOW_MS + _DAY_MS))

    def test_of_very_many_the_latest_are_known(self):
        for number in range(1000):
            self.stamps.first_ms(digest(number), NOW_MS + number)
        self.assertEqual(NOW_MS + 999, self.stamps.first_ms(digest(999), NOW_MS + 5000))
        known = sum(self.stamps.first_ms(digest(number), NOW_MS + 9000) < NOW_MS + 9000 for number in range(960, 1000))
        self.assertGreater(known, 25)

    def test_workers_that_were_forked_share_it(self):
        child = os.fork()
        if not child:
            self.stamps.first_ms(digest(1), NOW_MS)
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(NOW_MS, self.stamps.first_ms(digest(1), NOW_MS + 5000))

    def test_what_was_written_in_part_is_forgotten(self):
        self.stamps.first_ms(digest(1), NOW_MS)
        memory = self.stamps._memory
        place = memory.find(digest(1))
        memory[place + 16 : place + 18] = b"\xff\xff"
        self.assertEqual(NOW_MS + 1, self.stamps.first_ms(digest(1), NOW_MS + 1))
