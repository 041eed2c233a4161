# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.producer.outgoing import MessageIds


class MessageIdsTest(base.BaseTestCase):
    # Rule 3
    def test_each_producer_has_eight_random_bytes_of_its_own(self):
        prefixes = {MessageIds().next()[:8] for _ in range(100)}
        self.assertEqual(100, len(prefixes))

    def test_one_by_one_or_for_a_bulk_none_comes_twice(self):
        ids = MessageIds()
        taken = [ids.next(), *ids.take(3), ids.next()]
        self.assertEqual((5, {16}), (len(set(taken)), set(map(len, taken))))
