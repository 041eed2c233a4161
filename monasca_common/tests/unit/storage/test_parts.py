# SPDX-License-Identifier: Apache-2.0
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.storage import parts
from monasca_common.storage.base import Kind, Rows, Written
from monasca_common.storage.batch_rows import RowOrigin
from monasca_common.storage.errors import MessagesRefused, RowsRefused, StorageUnavailable, TooMuchAtOnce
from monasca_common.tests.contracts.storage.scenario import claim, measurement

_TOO_LONG_SECONDS = 30.0


class Database:
    """A database that stores at most ``most`` rows per call, and needs ``seconds_a_row`` for each row."""

    def __init__(self, most=1_000_000):
        self.most = most
        self.refused = set()
        self.next = 0
        self.now = 0.0
        self.seconds_a_row = 0.0
        self.too_long_seconds = _TOO_LONG_SECONDS
        self.stored = []
        self.claims = []

    def monotonic(self):
        return self.now

    def write(self, part, rows):
        if len(rows.values) > self.most:
            self.now += self.too_long_seconds
            raise TooMuchAtOnce("too slow")
        if reasons := {n: "refused" for n, row in enumerate(rows.values) if row.value in self.refused}:
            raise RowsRefused(reasons)
        self.now += self.seconds_a_row * len(rows.values)
        skipped = sum(offset < self.next for offset in rows.offsets)
        assert part.start <= self.next, "a gap"
        self.next = max(self.next, part.end)
        self.stored += [row.value for row in rows.values[skipped:]]
        self.claims.append((part.start, part.end))
        return Written(stored=len(rows.values) - skipped, skipped=skipped)


class PartsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.database = Database()
        self.size = parts.PartSize()

    def write(self, count=8, *, first=0, step=1):
        """Write ``count`` rows at offsets that are ``step`` apart."""
        offsets = range(first, first + count * step, step)
        rows = Rows(Kind.METRICS, [measurement(offset) for offset in offsets], offsets)
        return self.write_rows(claim(first, first + count * step), rows)

    def write_messages(self, *counts):
        """Write messages with these numbers of rows."""
        offsets = [offset for offset, count in enumerate(counts) for _ in range(count)]
        indexes = [index for count in counts for index in range(count)]
        rows = Rows(Kind.METRICS, [measurement(n) for n in range(len(offsets))], offsets, indexes=indexes)
        return self.write_rows(claim(0, len(counts)), rows)

    def write_rows(self, whole, rows):
        with mock.patch.object(parts.time, "monotonic", self.database.monotonic):
            return list(parts.write(self.database.write, whole, rows, self.size))

    def write_until_stored(self, *counts, **named):
        """Write until everything is stored, and return the number of calls with too many rows."""
        for failures in range(20):
            try:
                self.write_messages(*counts) if counts else self.write(**named)
                return failures
            except TooMuchAtOnce:
                continue
        return self.fail("never stored")

    def test_a_small_batch_is_one_claim(self):
        self.write()
        self.assertEqual([(0, 8)], self.database.claims)

    # Rule 25
    def test_a_large_batch_is_halved_until_it_succeeds_without_gaps(self):
        self.database.most = 2
        self.database.seconds_a_row = 10.0
        self.assertEqual(2, self.write_until_stored(step=10))
        self.assertEqual([(0, 20), (20, 40), (40, 60), (60, 80)], self.database.claims)
        self.assertEqual([10.0 * n for n in range(8)], self.database.stored)

    def test_a_size_that_succeeded_is_used_again(self):
        self.database.most, self.database.seconds_a_row = 2, 10.0
        self.write_until_stored()
        self.assertEqual(0, self.write_until_stored(first=8))
        self.assertEqual(16, len(self.database.stored))

    def test_the_size_grows_while_the_database_is_fast(self):
        self.database.most, self.database.seconds_a_row = 1, 10.0
        self.write_until_stored()
        self.database.most, self.database.seconds_a_row, self.database.claims = 1000, 0.01, []
        self.write(100, first=8)
        self.assertLess(len(self.database.claims), 10)

    def test_the_size_grows_again_after_a_shortage_that_is_reported_quickly(self):
        self.database.most, self.database.too_long_seconds, self.database.seconds_a_row = 1, 0.01, 1.0
        self.write_until_stored()
        self.assertEqual(1, self.size.most_rows)
        self.database.most, self.database.claims = 1000, []
        self.write(10, first=8)
        self.assertEqual(10, len(self.database.claims))
        self.database.now += 60.0
        self.write(100, first=18)
        self.assertLess(len(self.database.claims), 20)

    def test_a_size_that_takes_too_long_is_rarely_tried_again(self):
        self.database.most, self.database.seconds_a_row = 2, 10.0
        self.write_until_stored()
        self.assertEqual(0, self.write_until_stored(count=200, first=8))  # 2,000 seconds

    def test_skipped_rows_do_not_increase_the_size(self):
        self.database.most, self.database.seconds_a_row = 2, 10.0
        self.write_until_stored()
        self.database.seconds_a_row = 0.0
        self.write()
        self.assertEqual(2, self.size.most_rows)

    def test_a_single_row_that_is_too_slow_means_an_unavailable_database(self):
        self.database.most = 0
        self.size.most_rows = 1
        error = self.assertRaises(StorageUnavailable, self.write)
        self.assertNotIsInstance(error, TooMuchAtOnce)

    def test_concurrent_failures_halve_the_size_once(self):
        for _ in range(3):
            self.size.too_much(100, 1.0)
        self.assertEqual(50, self.size.most_rows)

    def test_refused_rows_have_the_offsets_of_their_messages(self):
        self.size.most_rows = 3
        self.database.refused = {40.0}
        refused = self.assertRaises(MessagesRefused, self.write, step=10)
        self.assertEqual({RowOrigin(40, None): "refused"}, refused.reasons)
        self.assertEqual([0.0, 10.0, 20.0], self.database.stored)

    def test_refused_rows_of_a_message_have_the_indexes_of_their_elements(self):
        self.size.most_rows = 3
        self.database.refused = {4.0, 6.0}
        refused = self.assertRaises(MessagesRefused, self.write_messages, 3, 3, 3)
        self.assertEqual({RowOrigin(1, 1): "refused"}, refused.reasons)
        self.assertEqual([0.0, 1.0, 2.0], self.database.stored)

    # Rule 25
    @given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 9))
    def test_the_rows_of_a_message_are_in_one_part(self, counts, most):
        self.database, self.size = Database(), parts.PartSize()
        self.size.most_rows = most
        stored = self.write_messages(*counts)
        self.assertEqual([float(n) for n in range(sum(counts))], self.database.stored)
        self.assertEqual([0, *(part.claim.end for part in stored)][:-1], [part.claim.start for part in stored])
        self.assertEqual(len(counts), stored[-1].claim.end)
        for part in stored:
            sizes = counts[part.claim.start : part.claim.end]
            self.assertTrue(sum(sizes) <= most or sum(map(bool, sizes)) == 1, (most, part))
            self.assertEqual(sum(sizes), part.written.stored)

    def test_a_part_that_is_written_again_skips_whole_messages(self):
        self.size.most_rows = 4
        self.database.refused = {7.0}
        self.assertRaises(MessagesRefused, self.write_messages, 2, 2, 2, 2)
        self.database.refused = set()
        self.assertEqual([4, 0], [part.written.skipped for part in self.write_messages(2, 2, 2, 2)])
        self.assertEqual([float(n) for n in range(8)], self.database.stored)

    def test_a_message_that_is_too_slow_means_an_unavailable_database(self):
        self.database.most = 2
        for _ in range(9):
            error = self.assertRaises(StorageUnavailable, self.write_messages, 1, 3)
        self.assertNotIsInstance(error, TooMuchAtOnce)
        self.assertEqual([0.0], self.database.stored)

    def test_the_size_grows_with_messages_of_several_rows(self):
        self.database.most, self.database.seconds_a_row = 3, 10.0
        self.write_until_stored(*[3] * 4)
        self.database.most, self.database.seconds_a_row, self.database.claims = 1000, 0.01, []
        self.database.next = 0
        self.write_messages(*[3] * 100)
        self.assertLess(len(self.database.claims), 10)

    def test_a_claim_without_rows_is_stored(self):
        self.size.most_rows = 1
        self.write(0)
        self.assertEqual([(0, 0)], self.database.claims)
