# SPDX-License-Identifier: Apache-2.0
"""Arguments of a caller are checked before anything is sent, because the client would misinterpret them or crash."""

from monasca_common.kafka.errors import MessageTooLarge, WrongType
from monasca_common.kafka.message import IdentifiedRecords, Record
from monasca_common.kafka.transport.memory import Fail
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase


class TypesTest(ProducerCase):
    def assert_refused(self, record, **common):
        producer = self.producer()
        self.assertRaises(WrongType, producer.publish, "t", [b"neighbour", record], **common)
        self.assertEqual([], self.values())

    def test_a_header_that_is_not_a_pair_of_name_and_bytes_is_refused(self):
        for header in ("ab", ("a",), ("a", b"b", b"c"), (b"a", b"b"), (1, b"b"), ("a", "b"), ("a", 1), None):
            self.assert_refused(Record(b"v", headers=(header,)))
        self.assert_refused(b"v", headers={"name": b"value"})

    # Rule 21
    def test_a_header_name_that_kafka_does_not_store_is_refused(self):
        for name in ("\ud800", "a\0b"):
            self.assert_refused(Record(b"v", headers=((name, b"b"),)))

    def test_an_id_that_is_not_bytes_is_refused(self):
        self.assert_refused(Record(b"v", message_id="id"))
        self.assert_refused(Record(b"v", message_id=7))

    def test_the_error_names_the_argument_the_types_and_the_remedy(self):
        producer = self.producer()
        encode = ": encode it (text.encode()), or write it with a serializer (dumps)"
        for call, text in (
            (lambda: producer.publish("t", ["v"]), f"value is bytes or None, not str{encode}"),
            (lambda: producer.send("t", "v"), f"value is bytes or None, not str{encode}"),
            (lambda: producer.publish("t", [Record(b"v", key="k")]), f"key is bytes or None, not str{encode}"),
            (lambda: producer.publish("t", [b"v"], key="k"), f"key is bytes or None, not str{encode}"),
            (lambda: producer.publish(b"t", [b"v"]), "topic is a str, not bytes: decode it (name.decode())"),
            (
                lambda: producer.publish("t", b"v"),
                "publish takes a list, or another iterable, of records, not bytes",
            ),
            (
                lambda: producer.publish("t", [Record(b"v", message_id="i")]),
                f"message_id is bytes or None, not str{encode}",
            ),
            (
                lambda: producer.publish("t", [Record(b"v", headers=(("a", "b"),))]),
                f"the value of a header is bytes or None, not str{encode}",
            ),
        ):
            self.assertEqual(text, str(self.assertRaises(WrongType, call)))

    def test_a_record_refuses_headers_that_are_not_a_tuple(self):
        error = self.assertRaises(TypeError, Record, b"v", headers={"a": b"b"})
        self.assertEqual(
            "headers is a tuple of pairs (name, value), not dict: write tuple(headers.items())", str(error)
        )
        self.assertRaises(TypeError, Record, b"v", headers=[("a", b"b")])

    def test_a_time_that_kafka_does_not_store_is_refused_by_its_name(self):
        producer = self.producer()
        for timestamp_ms in (0, -1, -5, 1.5, "1", 2**63):
            record = Record(b"v", timestamp_ms=timestamp_ms)
            for call in (
                lambda record=record: producer.publish("t", [record]),
                lambda record=record: producer.send("t", record),
            ):
                self.assertIn("timestamp_ms", str(self.assertRaises(WrongType, call)))
        self.assertEqual([], self.values())

    def test_a_partition_that_is_not_a_number_of_kafka_is_refused_before_it_waits(self):
        producer = self.producer()
        for partition in (-2, 2**31, 1.0, "0"):
            error = self.assertRaises(WrongType, producer.send, "t", Record(b"v", partition=partition))
            self.assertIn("partition", str(error))
        self.assertTrue(producer.publish("t", [Record(b"v", partition=0), Record(b"v", partition=-1)]).ok)

    def test_a_caller_may_change_records_that_it_has_published(self):
        producer, given = self.producer(), IdentifiedRecords([b"first"], [b"id1"])
        self.broker.disconnect()
        first = producer.publish("t", given, **AWAY)
        given.values[0], given.message_ids[0] = b"second", b"id2"
        second = producer.publish("t", given, **AWAY)
        self.broker.reconnect()
        self.assertEqual([True, True], [producer.retry(report).ok for report in (first, second)])
        self.assertEqual([(b"first", b"id1"), (b"second", b"id2")], list(zip(self.values(), self.ids(), strict=True)))

    def test_names_of_headers_count_by_their_bytes(self):
        report = self.warm_producer().publish("t", [Record(b"v", headers=(("\u20ac" * 400_000, b""),))])
        self.assertIsInstance(report.failed[0].error, MessageTooLarge)


class EmptyIdTest(ProducerCase):
    """An empty id counts as missing: two messages with an empty id are different messages."""

    def assert_each_is_sent_under_an_id_of_ours(self, *records):
        producer = self.warm_producer()
        self.broker.disconnect()  # so that both are in flight at the same time
        sent = [producer.send("t", record) for record in records]
        report = producer.publish("t", records, timeout=0)
        self.broker.reconnect()
        report = producer.retry(report)
        ids = sent + [delivery.message_id for delivery in report.delivered]
        self.assertEqual(4, len(set(ids)))
        self.assertNotIn(b"", ids)
        self.assertEqual([b"one", b"two"] * 2, self.values())
        self.assertEqual(ids, self.ids())

    # Rule 4
    def test_an_empty_message_id_is_not_an_id(self):
        self.assert_each_is_sent_under_an_id_of_ours(Record(b"one", message_id=b""), Record(b"two", message_id=b""))

    def test_an_empty_header_is_not_an_id(self):
        records = [Record(value, headers=(("message-id", b""),)) for value in (b"one", b"two")]
        self.assert_each_is_sent_under_an_id_of_ours(*records)

    def test_a_header_without_a_value_is_not_an_id(self):
        records = [Record(value, headers=(("message-id", None),)) for value in (b"one", b"two")]
        self.assert_each_is_sent_under_an_id_of_ours(*records)

    def test_an_id_in_a_header_is_used_if_the_id_of_the_record_is_empty(self):
        record = Record(b"one", message_id=b"", headers=(("message-id", b""), ("message-id", b"own")))
        self.producer().publish("t", [record])
        self.assertEqual([b"own"], self.ids())

    def test_messages_of_a_topic_without_ids_have_no_empty_header(self):
        producer = self.producer(topics_without_message_id=frozenset({"t"}))
        producer.publish("t", [Record(b"one", headers=(("message-id", b""),)), Record(b"two", message_id=b"")])
        self.assertEqual([(), ()], [record.headers for record in self.broker.records("t")])


class BadTimeTest(ProducerCase):
    # Rule 5
    def test_a_message_rejected_because_of_the_timestamp_of_another_message_is_retriable(self):
        producer = self.warm_producer()
        self.broker.inject("produce", Fail("INVALID_TIMESTAMP"), count=2)
        report = producer.publish("t", [b"neighbour", Record(b"v", timestamp_ms=1)])
        self.assertEqual([False, True], [delivery.error.permanent for delivery in report.failed])
        report = producer.retry(report)
        self.assertEqual(([0], [1]), ([d.index for d in report.delivered], [d.index for d in report.failed]))
