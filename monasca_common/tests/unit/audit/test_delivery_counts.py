# SPDX-License-Identifier: Apache-2.0
"""What audited producers delivered is added up, and is taken once."""

from oslotest import base

from monasca_common.audit.reporter import DeliveryTotals
from monasca_common.kafka.message import DeliveryCount

BUCKET = ("t", 0)


class DeliveryTotalsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.totals = DeliveryTotals(60)

    def test_counts_of_one_bucket_are_added_up_and_the_longest_delay_is_kept(self):
        self.totals.tap().add({BUCKET: DeliveryCount(2, 20, 300, 200)})
        self.totals.tap().add({BUCKET: DeliveryCount(1, 5, 100, 100), ("u", 0): DeliveryCount(1, 1, 0, 0)})
        self.assertEqual(
            {BUCKET: DeliveryCount(3, 25, 400, 200), ("u", 0): DeliveryCount(1, 1, 0, 0)}, self.totals.take()
        )
        self.assertEqual({}, self.totals.take())

    def test_what_is_delivered_in_a_transaction_counts_once_it_is_committed(self):
        tap = self.totals.tap()
        for committed, expected in ((False, {}), (True, {BUCKET: DeliveryCount(1, 1, 1, 1)})):
            tap.begin()
            tap.add({BUCKET: DeliveryCount(1, 1, 1, 1)})
            self.assertEqual({}, self.totals.take())
            tap.end(committed=committed)
            self.assertEqual(expected, self.totals.take())

    def test_a_transaction_of_one_producer_holds_back_the_counts_of_no_other(self):
        self.totals.tap().begin()
        self.totals.tap().add({BUCKET: DeliveryCount(1, 1, 1, 1)})
        self.assertEqual({BUCKET: DeliveryCount(1, 1, 1, 1)}, self.totals.take())
