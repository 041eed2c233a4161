# SPDX-License-Identifier: Apache-2.0
from monasca_common.kafka.message import MADE_ID_BYTES, Record
from monasca_common.kafka.outgoing import new_id_prefix
from monasca_common.kafka.transport.base import message_id
from monasca_common.tests.unit.kafka.producer.producer_case import ProducerCase


class MessageIdsTest(ProducerCase):
    # Rule 3
    def test_each_producer_has_its_own_prefix_of_at_least_64_random_bits(self):
        prefixes = {new_id_prefix() for _ in range(200)}
        self.assertEqual((200, {11}), (len(prefixes), set(map(len, prefixes))))
        self.assertEqual(64, len({byte for prefix in prefixes for byte in prefix}))  # 6 bits a byte

    # Rule 3
    def test_ids_of_all_calls_are_unique_printable_ascii_of_one_length(self):
        producer = self.producer()
        sent = []
        for _ in range(2):  # before the limit of the topic is known, and after
            sent += [each.message_id for each in producer.publish("t", [b"a", b"b"]).delivered]
            sent += [each.message_id for each in producer.publish("t", [Record(b"c"), b"d"]).delivered]
            sent += [producer.send("t", b"e"), producer.send("t", Record(b"f"))]
            producer.flush()
        self.assertEqual(12, len(set(sent)))
        self.assertEqual({MADE_ID_BYTES}, set(map(len, sent)))
        self.assertTrue(all(each.decode("ascii").isprintable() for each in sent))
        self.assertEqual(sorted(sent), sorted(self.ids()))

    def test_ids_end_with_the_sequence_in_hexadecimal_digits(self):
        self.assertEqual(b"prefix-----0000000000ff", message_id(b"prefix-----", 255))
