# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.partitioners import murmur2, partition_for

# The vectors of Kafka's own UtilsTest.testMurmur2.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


class PartitionersTest(base.BaseTestCase):
    def test_hashes_are_those_of_the_java_client(self):
        for key, signed in JAVA_HASHES.items():
            self.assertEqual(signed & 0xFFFFFFFF, murmur2(key), key)

    def test_the_sign_bit_is_dropped_before_the_remainder(self):
        self.assertEqual((-973932308 & 0x7FFFFFFF) % 7, partition_for(b"21", 7))

    def test_an_empty_key_has_a_partition_like_any_other(self):
        self.assertIn(partition_for(b"", 3), range(3))
