# SPDX-License-Identifier: Apache-2.0
"""What a caller hands over is looked at before anything is sent: the client would take it amiss, or crash."""

from monasca_common.kafka.errors import MessageTooLarge, WrongType
from monasca_common.kafka.message import Record
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.producer_case import ProducerCase


class TypesTest(ProducerCase):
    def assert_refused(self, record, **common):
        producer = self.producer()
        self.assertRaises(WrongType, producer.publish, "t", [b"neighbour", record], **common)
        self.assertEqual([], self.values())

    def test_a_header_that_is_no_pair_of_name_and_bytes_is_refused(self):
        for header in ("ab", ("a",), ("a", b"b", b"c"), (b"a", b"b"), (1, b"b"), ("a", "b"), ("a", 1), None):
            self.assert_refused(Record(b"v", headers=(header,)))
        self.assert_refused(b"v", headers={"name": b"value"})

    def test_a_name_of_a_header_that_is_no_text_is_refused_for_the_client_would_crash(self):
        self.assert_refused(Record(b"v", headers=(("\ud800", b"b"),)))

    def test_an_id_that_is_no_bytes_is_refused(self):
        self.assert_refused(Record(b"v", message_id="id"))
        self.assert_refused(Record(b"v", message_id=7))

    def test_names_of_headers_count_by_their_bytes(self):
        report = self.warm_producer().publish("t", [Record(b"v", headers=(("\u20ac" * 400_000, b""),))])
        self.assertIsInstance(report.failed[0].error, MessageTooLarge)


class BadTimeTest(ProducerCase):
    def test_who_was_rejected_for_a_neighbours_time_may_be_sent_again(self):
        producer = self.warm_producer()
        self.broker.inject("produce", Fail("INVALID_TIMESTAMP"), count=2)
        report = producer.publish("t", [b"neighbour", Record(b"v", timestamp_ms=1)])
        self.assertEqual([False, True], [delivery.error.permanent for delivery in report.failed])
        report = producer.retry(report)
        self.assertEqual(([0], [1]), ([d.index for d in report.delivered], [d.index for d in report.failed]))
