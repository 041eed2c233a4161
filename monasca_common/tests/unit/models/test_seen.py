# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.models.seen import Seen
from monasca_common.tests.threads import run_together


class TestSeen(base.BaseTestCase):
    def test_a_cached_value_is_found(self):
        seen = Seen(2)
        seen.keep("a", 1, 10)
        self.assertEqual((1, None), (seen.find("a"), seen.find("b")))

    def test_a_full_cache_drops_its_older_half(self):
        seen = Seen(4)
        for key in "abcde":
            seen.keep(key, key, 1)
        self.assertEqual([None, None, "c", "d", "e"], [seen.find(key) for key in "abcde"])

    def test_large_entries_are_not_cached(self):
        seen = Seen(4, max_entry_bytes=10)
        seen.keep("a", 1, 11)
        self.assertIsNone(seen.find("a"))

    def test_threads_may_share_a_cache(self):
        seen = Seen(8)

        def work(number):
            for key in range(3000):
                seen.keep((number, key), key, 1)

        run_together(work, range(4))
        self.assertLessEqual(len(seen), 8 + 4)
