# SPDX-License-Identifier: Apache-2.0
"""Each delivered message is counted once, in the bucket of its record's timestamp."""

from monasca_common.kafka.errors import MisuseError
from monasca_common.kafka.message import Record
from monasca_common.kafka.producer.delivery_counts import DeliveryCounter
from monasca_common.kafka.transport.base import DeliveryCount
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.producer.producer_case import ProducerCase

_BUCKET_MS = 60_000


class DeliveryCountsTest(ProducerCase):
    def setUp(self):
        super().setUp()
        self.counted = self.producer()
        self.counter = self.counted.count_deliveries(_BUCKET_MS // 1000)

    def assert_counted_as_logged(self):
        logged = {}
        for message in self.broker.records("t"):
            bucket_ms = message.timestamp_ms // _BUCKET_MS * _BUCKET_MS
            logged[bucket_ms] = logged.get(bucket_ms, 0) + 1
        counted = {bucket_ms: count.messages for (_, bucket_ms), count in self.counter.take().items()}
        self.assertEqual(logged, counted)
        self.assertEqual({}, self.counter.take())
        return logged

    def test_messages_of_every_call_are_counted_in_their_buckets(self):
        for _ in range(3):
            self.counted.publish("t", [b"a", b"b"])
            self.counted.publish("t", [Record(b"c"), Record(b"late", timestamp_ms=self.clock.time_ms() - _BUCKET_MS)])
            self.counted.send("t", b"d")
            self.counted.send("t", Record(b"e"))
            self.assertEqual(2, self.counted.flush().delivered_count)
            self.clock.advance(_BUCKET_MS / 1000)
        self.assertEqual(4, len(self.assert_counted_as_logged()))

    def test_a_message_that_is_sent_again_counts_once_and_when_it_is_delivered(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        report = self.counted.publish("t", [b"a"])
        self.assertEqual(({}, 1), (self.counter.take(), len(report.failed)))
        self.clock.advance(_BUCKET_MS / 1000)
        self.assertTrue(self.counted.retry(report).ok)
        self.assertEqual([1], list(self.assert_counted_as_logged().values()))

    def test_a_reopened_producer_counts_what_its_new_client_delivers(self):
        self.counted.publish("t", [b"a"])
        self.counted.reopen()
        self.counted.publish("t", [b"b"])
        self.assertEqual([2], list(self.assert_counted_as_logged().values()))

    def test_a_producer_is_counted_once_and_from_its_beginning(self):
        in_use = self.producer()
        in_use.publish("t", [b"a"])
        for producer in (self.counted, in_use):
            self.assertRaises(MisuseError, producer.count_deliveries, 60)


class CounterTest(ProducerCase):
    BUCKET = ("t", 0)

    def test_counts_of_one_bucket_are_added_up_and_the_longest_delay_is_kept(self):
        counter = DeliveryCounter()
        counter.add({self.BUCKET: DeliveryCount(2, 20, 300, 200)})
        counter.add({self.BUCKET: DeliveryCount(1, 5, 100, 100), ("u", 0): DeliveryCount(1, 1, 0, 0)})
        self.assertEqual(
            {self.BUCKET: DeliveryCount(3, 25, 400, 200), ("u", 0): DeliveryCount(1, 1, 0, 0)}, counter.take()
        )

    def test_what_is_delivered_in_a_transaction_counts_once_it_is_committed(self):
        counter = DeliveryCounter()
        for committed, expected in ((False, {}), (True, {self.BUCKET: DeliveryCount(1, 1, 1, 1)})):
            counter.begin()
            counter.add({self.BUCKET: DeliveryCount(1, 1, 1, 1)})
            self.assertEqual({}, counter.take())
            counter.end(committed=committed)
            self.assertEqual(expected, counter.take())
