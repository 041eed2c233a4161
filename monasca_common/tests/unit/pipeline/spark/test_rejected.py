# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.message import Record
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.pipeline.spark.rejected import refetch


class RefetchTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 1)
        producer = self.kafka.producer(linger_ms=0)
        for value in (b"a", b"b", b"c"):
            producer.publish("metrics", [Record(value)]).raise_for_undelivered()
            self.kafka.broker.skip_offsets("metrics", 0)

    def read(self, *offsets):
        return [each.value for each in refetch(self.kafka.consumer_settings("metrics"), 0, offsets)]

    def test_messages_are_returned_in_order_of_offset(self):
        self.assertEqual([b"a", b"c"], self.read(4, 0))

    def test_a_missing_offset_is_a_retriable_error(self):
        error = self.assertRaises(TransportError, self.read, 1)
        self.assertEqual("offset 1 of metrics/0 is no longer in the log", str(error))
        self.kafka.broker.delete_records("metrics", 0, 2)
        error = self.assertRaises(TransportError, self.read, 0)
        self.assertIn("offset 0 of metrics/0 is not in the log", str(error))
