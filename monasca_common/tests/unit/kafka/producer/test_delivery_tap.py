# SPDX-License-Identifier: Apache-2.0
"""Each delivered message is counted once, in the bucket of its record's timestamp."""

from collections import Counter

from monasca_common.kafka.message import Record
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.producer.producer_case import ProducerCase

_BUCKET_MS = 60_000


class Tap:
    bucket_seconds = _BUCKET_MS // 1000

    def __init__(self):
        self.counted = Counter()  # messages by bucket

    def add(self, counts):
        self.counted.update({bucket_ms: count for (_, bucket_ms), count in counts.items()})


class DeliveryTapTest(ProducerCase):
    def setUp(self):
        super().setUp()
        self.tap = Tap()
        self.tapped = self.producer(tap=lambda: self.tap)

    def assert_counted_as_logged(self):
        logged = Counter(message.timestamp_ms // _BUCKET_MS * _BUCKET_MS for message in self.broker.records("t"))
        self.assertEqual(logged, self.tap.counted)
        return logged

    def test_messages_of_every_call_are_counted_in_their_buckets(self):
        for _ in range(3):
            self.tapped.publish("t", [b"a", b"b"])
            self.tapped.publish("t", [Record(b"c"), Record(b"late", timestamp_ms=self.clock.time_ms() - _BUCKET_MS)])
            self.tapped.send("t", b"d")
            self.tapped.send("t", Record(b"e"))
            self.assertEqual(2, self.tapped.flush().delivered_count)
            self.clock.advance(_BUCKET_MS / 1000)
        self.assertEqual(4, len(self.assert_counted_as_logged()))

    def test_a_resent_message_counts_once_at_its_delivery(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        report = self.tapped.publish("t", [b"a"])
        self.assertEqual((0, 1), (self.tap.counted.total(), len(report.failed)))
        self.clock.advance(_BUCKET_MS / 1000)
        self.assertTrue(self.tapped.retry(report).ok)
        self.assertEqual([1], list(self.assert_counted_as_logged().values()))

    def test_a_reopened_producer_counts_messages_that_its_new_client_delivers(self):
        self.tapped.publish("t", [b"a"])
        self.tapped.reopen()
        self.tapped.publish("t", [b"b"])
        self.assertEqual([2], list(self.assert_counted_as_logged().values()))

    def test_a_tap_that_raises_loses_no_outcome(self):
        self.tap.add = self.fail
        self.assertTrue(self.tapped.publish("t", [b"a", b"b"]).ok)
        self.tapped.send("t", b"c")
        self.assertEqual(1, self.tapped.flush().delivered_count)

    def test_each_producer_has_its_own_tap(self):
        other = Tap()
        self.producer(tap=lambda: other).publish("t", [b"a", b"b"])
        self.tapped.publish("t", [b"c"])
        self.assertEqual((2, 1), (other.counted.total(), self.tap.counted.total()))
