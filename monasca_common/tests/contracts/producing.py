# SPDX-License-Identifier: Apache-2.0
"""The contract of `KafkaProducer`: every outcome is known, and every id is kept."""

from monasca_common.kafka.errors import DeliveryRefused, MessageTooLarge
from monasca_common.kafka.message import MESSAGE_ID_HEADER, IdentifiedRecords, Record
from monasca_common.kafka.partitioners import partition_for
from monasca_common.tests.contracts.cluster import PARTITIONS, Capability, needs
from monasca_common.tests.contracts.scenario import Scenario

_NOWHERE = 99  # a partition number that does not exist in any topic


class ProducerContract(Scenario):
    def setUp(self) -> None:
        super().setUp()
        self.producer = self.cluster.producer()

    # Rule 6
    def test_every_record_of_a_bulk_is_reported_with_its_partition_and_offset(self) -> None:
        values = [b"%d" % number for number in range(50)]
        report = self.publish(self.topic, values)
        self.assertEqual((50, True, (), ()), (report.delivered_count, report.ok, report.failed, report.unknown))
        places = {(message.partition, message.offset): message for message in self.log(self.topic)}
        for delivery in report.delivered:
            assert delivery.partition is not None and delivery.offset is not None
            message = places.pop((delivery.partition, delivery.offset))
            self.assertEqual((values[delivery.index], delivery.message_id), (message.value, message.message_id))
        self.assertEqual({}, places)

    def test_keys_headers_timestamps_and_partitions_arrive_as_they_were_given(self) -> None:
        headers = (("a", b"1"), ("b", None), ("a", b"2"), ("empty", b""))
        self.publish(self.topic, [Record(b"v", b"k", headers, 1_600_000_000_123, partition=3)])
        [message] = self.log(self.topic)
        self.assertEqual(list(headers), [header for header in message.headers if header[0] != MESSAGE_ID_HEADER])
        self.assertEqual(
            (3, b"k", b"v", 1_600_000_000_123),
            (message.partition, message.key, message.value, message.timestamp_ms),
        )

    def test_none_and_the_empty_value_are_different_values(self) -> None:
        self.publish(self.topic, [Record(None, b"k"), Record(b"", b"k")])
        self.assertEqual([None, b""], [message.value for message in self.log(self.topic)])

    def test_a_key_goes_to_the_partition_that_the_java_client_would_choose(self) -> None:
        keys = [b"21", b"foobar", b"a-little-bit-long-string", b"abc", b"", *(b"key-%d" % n for n in range(20))]
        self.publish(self.topic, [Record(b"v", key) for key in keys])
        found = {message.key: message.partition for message in self.log(self.topic)}
        self.assertEqual({key: partition_for(key, PARTITIONS) for key in keys}, found)

    # Rule 1
    def test_records_of_a_partition_stay_in_order(self) -> None:
        for start in range(0, 100, 10):
            self.producer.publish(self.topic, [b"%d" % number for number in range(start, start + 10)], key=b"k")
        self.assertEqual([b"%d" % number for number in range(100)], [message.value for message in self.log(self.topic)])

    def test_every_message_has_its_own_id_in_a_header(self) -> None:
        report = self.publish(self.topic, [b"same"] * 20)
        ids = {delivery.message_id for delivery in report.delivered}
        self.assertEqual(20, len(ids))
        self.assertEqual(ids, {message.message_id for message in self.log(self.topic)})

    def test_a_bulk_with_ids_of_the_caller_is_written_under_them(self) -> None:
        values, ids = [b"%d" % number for number in range(50)], [b"own-%d" % number for number in range(50)]
        report = self.publish(self.topic, IdentifiedRecords(values, ids))
        self.assertEqual(ids, [delivery.message_id for delivery in report.delivered])
        written = {message.message_id: message.value for message in self.log(self.topic)}
        self.assertEqual((dict(zip(ids, values, strict=True)), 50), (written, len(self.log(self.topic))))
        self.assertEqual({1}, {len(message.headers) for message in self.log(self.topic)})

    @needs(Capability.OUTAGES)
    def test_a_bulk_whose_ids_are_in_flight_waits_for_them(self) -> None:
        self.producer.publish(self.topic, [b"warm"], timeout=self.cluster.patience_seconds).raise_for_undelivered()
        with self.cluster.outage():
            report = self.producer.publish(self.topic, IdentifiedRecords([b"1", b"2"], [b"one", b"two"]), timeout=0.2)
            self.assertEqual([b"one", b"two"], [delivery.message_id for delivery in report.unknown])
            again = self.producer.publish(self.topic, IdentifiedRecords([b"2", b"3"], [b"two", b"three"]), timeout=0.2)
        for unknown, ids in ((report, [b"one", b"two"]), (again, [b"two", b"three"])):
            retried = self.producer.retry(unknown, timeout=self.cluster.patience_seconds)
            self.assertEqual(ids, [delivery.message_id for delivery in retried.delivered])
        self.assertEqual([b"1", b"2", b"3", b"warm"], sorted(message.value or b"" for message in self.log(self.topic)))

    def test_undeliverable_messages_fail_and_others_are_delivered(self) -> None:
        report = self.producer.publish(self.topic, [b"1", Record(b"2", partition=_NOWHERE), b"3"])
        [failed] = report.failed
        self.assertEqual((1, None), (failed.index, failed.offset))
        self.assertIsInstance(failed.error, DeliveryRefused)
        self.assertEqual((2, ()), (report.delivered_count, report.unknown))
        self.assertEqual([b"1", b"3"], sorted(message.value or b"" for message in self.log(self.topic)))

    @needs(Capability.TOPIC_LIMITS)
    def test_a_record_that_its_topic_does_not_accept_is_not_sent(self) -> None:
        topic = self.cluster.new_topic(max_message_bytes=2000)
        report = self.producer.publish(topic, [b"small", b"x" * 3000, b"small too"])
        [failed] = report.failed
        assert isinstance(failed.error, MessageTooLarge)
        self.assertEqual((1, 2000, topic), (failed.index, failed.error.limit, failed.error.topic))
        self.assertEqual(2, report.delivered_count)
        self.assertEqual([1], [delivery.index for delivery in self.producer.retry(report).failed])

    # Rule 2
    def test_many_small_records_are_never_rejected_as_a_batch(self) -> None:
        topic = self.cluster.new_topic(max_message_bytes=2000)
        report = self.publish(topic, [b"x" * 500] * 40, linger_ms=50, compression="none")
        self.assertEqual(40, report.delivered_count)

    @needs(Capability.LOST_ANSWERS)
    def test_a_lost_response_neither_loses_nor_duplicates_a_record(self) -> None:
        self.producer.publish(self.topic, [b"warm"], timeout=self.cluster.patience_seconds).raise_for_undelivered()
        self.cluster.lose_produce_answers(2)
        reports = [self.producer.publish(self.topic, [b"%d" % number for number in range(20)], timeout=0.02)]
        for _ in self.attempts(lambda: repr(reports)):
            if reports[-1].ok:
                break
            reports.append(self.producer.retry(reports[-1], timeout=1.0))
        self.assertEqual(20, reports[-1].delivered_count)
        self.assertEqual(21, len(self.log(self.topic)))

    @needs(Capability.OUTAGES)
    def test_messages_without_a_response_are_unknown_and_a_retry_waits_for_them(self) -> None:
        self.producer.publish(self.topic, [b"warm"], timeout=self.cluster.patience_seconds).raise_for_undelivered()
        with self.cluster.outage():
            report = self.producer.publish(self.topic, [b"1", b"2"], timeout=0.2)
            self.assertEqual([0, 1], [delivery.index for delivery in report.unknown])
        again = self.producer.retry(report, timeout=self.cluster.patience_seconds)
        self.assertEqual(
            [delivery.message_id for delivery in report.unknown], [delivery.message_id for delivery in again.delivered]
        )
        self.assertEqual([b"1", b"2", b"warm"], sorted(message.value or b"" for message in self.log(self.topic)))

    @needs(Capability.OUTAGES)
    def test_close_ends_within_its_timeout_and_reports_abandoned_messages(self) -> None:
        self.producer.publish(self.topic, [b"warm"], timeout=self.cluster.patience_seconds).raise_for_undelivered()
        with self.cluster.outage():
            self.producer.send(self.topic, b"lost")
            report = self.producer.close(timeout=0.1)
        self.assertEqual((0, 1), (report.delivered_count, len(report.unknown)))
        self.assertEqual(repr(report), repr(self.producer.close()))

    # Rule 6
    def test_sends_are_reported_by_the_next_flush(self) -> None:
        ids = [self.producer.send(self.topic, b"%d" % number) for number in range(10)]
        self.producer.send(self.topic, Record(b"nowhere", partition=_NOWHERE))
        report = self.producer.flush(self.cluster.patience_seconds)
        self.assertEqual((10, 1), (report.delivered_count, len(report.failed)))
        self.assertEqual(set(ids), {message.message_id for message in self.log(self.topic)})
        self.assertEqual((0, True), (self.producer.flush(1).delivered_count, self.producer.flush(1).ok))

    def test_closing_delivers_messages_in_flight_and_closing_again_returns_the_same_report(self) -> None:
        for number in range(10):
            self.producer.send(self.topic, b"%d" % number)
        report = self.producer.close(self.cluster.patience_seconds)
        self.assertEqual((10, True), (report.delivered_count, report.ok))
        self.assertEqual(repr(report), repr(self.producer.close()))
        self.assertEqual(10, len(self.log(self.topic)))

    def test_a_topic_whose_rows_have_a_natural_key_needs_no_ids(self) -> None:
        report = self.publish(self.topic, [b"v"], topics_without_message_id=frozenset({self.topic}))
        [message] = self.log(self.topic)
        self.assertEqual(([None], ()), ([delivery.message_id for delivery in report.delivered], message.headers))
