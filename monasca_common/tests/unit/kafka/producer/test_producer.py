# SPDX-License-Identifier: Apache-2.0
import contextlib
import threading
from unittest import mock

import fixtures

from monasca_common.kafka.errors import (
    ClosedError,
    ConfigurationError,
    DeliveryAbandoned,
    DeliveryRefused,
    DeliveryTimeout,
    InCallbackError,
    LargerThanBudget,
    MessageTooLarge,
    QueueFull,
    UndeliveredError,
    WrongType,
)
from monasca_common.kafka.message import IdentifiedRecords, Record
from monasca_common.kafka.outgoing import size_of
from monasca_common.kafka.producer.table import next_attempt
from monasca_common.kafka.transport.memory import Delay, Fail, LoseAnswer
from monasca_common.tests.threads import run_together
from monasca_common.tests.unit.kafka.producer.producer_case import AWAY, ProducerCase


class PublishTest(ProducerCase):
    def test_an_empty_bulk_is_delivered(self):
        report = self.producer().publish("t", [])
        self.assertTrue(report.ok)
        self.assertEqual(0, report.delivered_count)

    def test_records_without_key_and_headers_get_the_key_and_headers_of_the_bulk(self):
        records = [b"a", Record(b"b", key=b"own", headers=(("h", b"1"), ("h", None)))]
        self.producer().publish("t", records, key=b"k", headers=(("common", b"c"),))
        first, second = self.broker.records("t")
        self.assertEqual((b"k", b"own"), (first.key, second.key))
        self.assertEqual((("common", b"c"),), first.headers[:-1])
        self.assertEqual((("common", b"c"), ("h", b"1"), ("h", None)), second.headers[:-1])

    # Rule 3
    def test_ids_differ_between_messages_and_between_producers(self):
        for _ in range(2):
            self.producer().publish("t", [b"a", b"b"])
        self.assertEqual(4, len(set(self.ids())))

    def test_messages_without_a_response_at_the_deadline_are_unknown_and_in_flight(self):
        self.broker.inject("produce", Delay(500))
        producer = self.warm_producer()
        producer.publish("t", [b"first"], **AWAY)
        report = producer.publish("t", [b"late"], **AWAY)
        self.assertEqual((0, 0, 1), (report.delivered_count, len(report.failed), len(report.unknown)))
        self.assertIsInstance(report.unknown[0].error, DeliveryTimeout)
        error = self.assertRaises(UndeliveredError, report.raise_for_undelivered)
        self.assertIs(report, error.report)
        self.assertEqual(f"0 delivered, 0 failed, 1 unknown: {report.unknown[0].error}", str(error))

    # Rule 2
    def test_a_topic_with_a_small_limit_has_a_client_with_smaller_batches(self):
        self.broker.create_topic("small", 1, max_message_bytes=1000)
        opened = []
        settings = self.kafka.producer_settings()
        from monasca_common.kafka.producer.producer import KafkaProducer
        from monasca_common.kafka.transport.memory import MemoryProducer

        def open_transport(batch_bytes, on_error):
            opened.append(batch_bytes)
            return MemoryProducer(settings, batch_bytes=batch_bytes, on_error=on_error)

        producer = KafkaProducer(settings, open_transport)
        self.addCleanup(producer.close, 0)
        self.assertTrue(producer.publish("small", [b"a"]).ok)
        self.assertTrue(producer.publish("t", [b"a"]).ok)
        self.assertEqual([1_000_000, 1000], opened)

    def test_a_transactional_producer_refuses_a_topic_with_a_smaller_batch_limit(self):
        self.broker.create_topic("small", 1, max_message_bytes=1000)
        producer = self.producer(transactional_id="mine")
        [failed] = producer.publish("small", [b"a"]).failed
        self.assertIn("set [kafka] max_message_bytes to 1000", str(failed.error))
        self.assertTrue(failed.error.permanent)
        self.assertTrue(self.producer(transactional_id="mine", max_message_bytes=1000).publish("small", [b"a"]).ok)

    def test_a_rejection_by_the_broker_is_failed(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        report = self.producer().publish("t", [b"a"])
        [failed] = report.failed
        self.assertIsInstance(failed.error, DeliveryRefused)
        self.assertEqual("NOT_ENOUGH_REPLICAS", failed.error.cause.name)
        self.assertEqual([], self.values())

    def test_a_rejection_after_a_lost_response_is_unknown(self):
        self.broker.inject("produce", LoseAnswer(0, error="INVALID_RECORD"))
        report = self.producer().publish("t", [b"a"])
        self.assertEqual((0, 1), (len(report.failed), len(report.unknown)))
        self.assertEqual([b"a"], self.values())

    def test_a_partition_that_does_not_exist_is_failed(self):
        report = self.producer().publish("t", [Record(b"a", partition=7)])
        self.assertEqual("_UNKNOWN_PARTITION", report.failed[0].error.cause.name)

    # Rule 6
    def test_a_fatal_client_is_reported_immediately_and_not_at_the_deadline(self):
        self.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        producer = self.producer()
        report = self.at_once(lambda: producer.publish("t", [b"a"], timeout=3600))
        self.assertEqual("CLUSTER_AUTHORIZATION_FAILED", report.unknown[0].error.cause.name)

    # Rule 8
    def test_all_messages_of_a_bulk_without_room_fail(self):
        producer = self.warm_producer(budget_messages=4)
        self.broker.disconnect()
        producer.publish("t", [b"a"] * 3, **AWAY)
        report = producer.publish("t", [b"b"] * 2, **AWAY)
        self.assertEqual(2, len(report.failed))
        self.assertIsInstance(report.failed[0].error, QueueFull)
        self.broker.reconnect()
        self.assertTrue(producer.publish("t", [b"c"]).ok)
        self.assertEqual([b"a"] * 3 + [b"c"], self.values())

    def test_a_bulk_larger_than_the_budget_fails_without_waiting_and_its_errors_have_the_numbers(self):
        for values, limits, numbers in (
            ([b"x" * 400] * 3, {"budget_bytes": 1000}, "the budget is 100000 messages and 1000 bytes"),
            ([b"x"] * 3, {"budget_messages": 2}, "the budget is 2 messages and 268435456 bytes"),
        ):
            producer = self.producer(**limits)
            report = self.at_once(lambda producer=producer, values=values: producer.publish("t", values, timeout=3600))
            self.assertEqual(({QueueFull}, 3), ({type(each.error) for each in report.failed}, len(report.failed)))
            size = sum(size_of(Record(value), None) for value in values)
            for each in report.failed:
                self.assertIn(f"no room for 3 messages of {size} bytes: {numbers}; publish fewer", str(each.error))
            self.assertTrue(report.retriable)
        self.assertEqual([], self.values())

    def test_a_message_larger_than_the_budget_is_reported_as_such_and_not_retried(self):
        producer = self.producer(budget_bytes=1000)
        report = producer.publish("t", [b"small", b"x" * 1000])
        self.assertEqual([QueueFull, LargerThanBudget], [type(each.error) for each in report.failed])
        self.assertIn("'t' is over the producer's budget of 1000 bytes", str(report.failed[1].error))
        again = producer.retry(report)
        self.assertEqual(([0], [1]), ([each.index for each in again.delivered], [each.index for each in again.failed]))
        self.assertRaises(LargerThanBudget, producer.send, "t", b"x" * 1000)
        self.assertEqual([b"small"], self.values())

    def test_a_bulk_that_waits_for_room_is_sent_when_there_is_room(self):
        producer = self.warm_producer(budget_messages=2)
        self.broker.disconnect()
        producer.publish("t", [b"a", b"b"], **AWAY)
        results = []
        waiter = threading.Thread(target=lambda: results.append(producer.publish("t", [b"c"], timeout=3600)))
        waiter.start()
        self.broker.reconnect()
        waiter.join(50)
        self.assertTrue(results[0].ok)
        self.assertEqual([b"a", b"b", b"c"], self.values())

    def test_messages_that_wait_for_a_limit_keep_their_order(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"))
        producer = self.producer()
        producer.publish("t", [b"1"], **AWAY)
        producer.send("t", b"2")
        self.assertTrue(producer.publish("t", [b"3"]).ok)
        self.assertEqual([b"1", b"2", b"3"], self.values())

    def test_without_a_reported_limit_the_configured_limit_applies(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        producer = self.producer(max_message_bytes=2000)
        report = producer.publish("t", [b"a", b"x" * 3000], **AWAY)
        self.clock.advance(10)
        report = producer.retry(report)
        self.assertEqual(([0], [1]), ([d.index for d in report.delivered], [d.index for d in report.failed]))

    def test_a_flush_reports_for_an_interrupted_publish(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), nth=2)
        producer = self.warm_producer()
        wait = producer._serving.wait

        def interrupted(is_over, deadline):
            wait(is_over, deadline)
            raise KeyboardInterrupt

        producer._serving.wait = interrupted
        self.assertRaises(KeyboardInterrupt, producer.publish, "t", [b"a", b"b"])
        producer._serving.wait = wait
        report = producer.flush()
        self.assertEqual((1, 1), (report.delivered_count, len(report.failed)))

    def test_wrong_types_are_refused_before_anything_is_sent(self):
        producer = self.producer()
        for records in (b"bytes", "text", Record(b"x"), ["text"], [b"good", 7], [Record("text")]):
            self.assertRaises((WrongType, TypeError), producer.publish, "t", records)
        self.assertRaises(WrongType, producer.publish, b"t", [b"x"])
        self.assertRaises(WrongType, producer.publish, "t", [b"x"], key="k")
        self.assertRaises(WrongType, producer.send, "t", "text")
        producer.publish("t", [b"x" * 2_000_000])  # from here on the topic's limit is known
        self.assertRaises(WrongType, producer.send, "t", b"x", key="k")
        self.assertEqual([], self.values())


class RetryTest(ProducerCase):
    def test_only_a_report_is_retried(self):
        refused = self.assertRaises(WrongType, self.producer().retry, [b"x"])

        self.assertEqual("report: a report is a DeliveryReport, not list", str(refused))

    # Rule 3
    def test_a_retry_keeps_the_message_id(self):
        producer = self.producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        report = producer.publish("t", [b"a", b"b"])
        again = producer.retry(report)
        self.assertTrue(again.ok)
        self.assertEqual([report.failed[0].message_id], [d.message_id for d in again.delivered if d.index == 0])
        self.assertEqual({b"a", b"b"}, set(self.values()))
        self.assertEqual(2, len(self.values()))

    # Rule 4
    def test_an_id_that_is_in_a_report_twice_is_sent_again_once(self):
        producer = self.producer()
        same = Record(b"a", message_id=b"own")
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=2)
        report = producer.publish("t", [same, b"b", same])
        deliver = producer._deliver

        def deliver_and_wait(bulk, deadline):
            deliver(bulk, deadline)
            producer._serving.wait(bulk.all_over(), deadline)

        with mock.patch.object(producer, "_deliver", deliver_and_wait):
            self.assertTrue(producer.retry(report).ok)
        self.assertEqual([b"a", b"b"], sorted(self.values()))

    def test_no_flush_repeats_the_report_of_a_retry(self):
        producer = self.producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=3)
        report = producer.publish("t", [b"a", b"b"])
        report = producer.retry(report)
        self.assertEqual((1, 1), (report.delivered_count, len(report.failed)))
        flushed = producer.flush()
        self.assertEqual((0, ()), (flushed.delivered_count, flushed.failed + flushed.unknown))

    # Rule 4
    def test_a_retry_attaches_to_queued_messages_and_does_not_produce_them_again(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        report = producer.publish("t", [b"a", b"b"], **AWAY)
        report = producer.retry(report, **AWAY)
        self.assertEqual(2, len(report.unknown))
        self.broker.reconnect()
        self.assertTrue(producer.retry(report).ok)
        self.assertEqual([b"a", b"b"], self.values())

    def test_delivered_messages_remain_delivered(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), nth=2)
        producer = self.producer()
        report = producer.publish("t", [b"a", b"b", b"c"])
        again = producer.retry(report)
        self.assertEqual([0, 1, 2], [d.index for d in again.delivered])
        self.assertEqual([b"a", b"c", b"b"], self.values())

    # Rule 4
    def test_permanently_refused_messages_are_not_sent_again(self):
        self.broker.inject("produce", Fail("INVALID_RECORD"))
        producer = self.producer()
        report = producer.publish("t", [b"bad", b"x" * 2_000_000])
        again = producer.retry(report)
        self.assertEqual([0, 1], [d.index for d in again.failed])
        self.assertFalse(again.retriable)
        self.assertEqual([], self.values())

    def test_an_old_report_retried_twice_sends_once(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        producer = self.producer()
        report = producer.publish("t", [b"a"])
        self.assertTrue(producer.retry(report).ok)
        self.assertTrue(producer.retry(report).ok)
        self.assertEqual([b"a"], self.values())

    def test_two_threads_that_retry_one_report_at_the_same_time_send_once(self):
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=2)
        producer = self.producer()
        report = producer.publish("t", [b"a", b"b"])
        both_inside = threading.Barrier(2)

        def slow_next_attempt(old, bulk):
            with contextlib.suppress(threading.BrokenBarrierError):
                both_inside.wait(0.1)  # times out, because the other thread is blocked
            return next_attempt(old, bulk)

        module = "monasca_common.kafka.producer.producer"
        self.useFixture(fixtures.MonkeyPatch(f"{module}.next_attempt", slow_next_attempt))
        reports = run_together(producer.retry, [report] * 2)
        self.assertEqual([True, True], [again.ok for again in reports])
        self.assertEqual([b"a", b"b"], sorted(self.values()))

    # Rule 4
    def test_any_producer_can_retry_messages_that_another_abandoned(self):
        first = self.warm_producer()
        self.broker.disconnect()
        report = first.publish("t", [b"a"], **AWAY)
        first.close(0)
        self.broker.reconnect()
        again = self.warm_producer().retry(report)
        self.assertTrue(again.ok)
        self.assertEqual([again.delivered[0].message_id], self.ids())

    def test_a_retry_attaches_to_messages_in_flight_in_another_producer(self):
        first = self.warm_producer()
        self.broker.disconnect()
        report = first.publish("t", [b"a"], **AWAY)
        self.broker.reconnect()
        self.assertTrue(self.warm_producer().retry(report).ok)
        self.assertEqual([b"a"], self.values())

    # Rule 5
    def test_an_unknown_message_that_is_rejected_at_its_retry_stays_unknown(self):
        self.broker.inject("produce", LoseAnswer(0, error="REQUEST_TIMED_OUT"))
        producer = self.producer()
        report = producer.publish("t", [b"a"])
        self.assertEqual(1, len(report.unknown))
        self.clock.advance(3600)  # after the time in which a connection error is suspected
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        again = producer.retry(report)
        self.assertEqual((0, 1), (len(again.failed), len(again.unknown)))

    # Rule 4
    def test_a_message_attaches_to_an_outstanding_one_with_the_same_own_id(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        record = Record(b"a", message_id=b"own")
        self.assertEqual(1, len(producer.publish("t", [record], **AWAY).unknown))
        self.assertEqual(b"own", producer.send("t", record))
        results = []
        waiter = threading.Thread(target=lambda: results.append(producer.publish("t", [record, record])))
        waiter.start()
        self.broker.reconnect()
        waiter.join(50)
        self.assertEqual([0, 0], [d.offset for d in results[0].delivered])
        self.assertEqual([b"own"], self.ids())

    def test_a_caller_s_own_id_is_free_again_once_it_is_settled(self):
        producer = self.producer()
        for _ in range(2):
            self.assertTrue(producer.publish("t", [Record(b"a", message_id=b"own")]).ok)
        self.assertEqual([b"own", b"own"], self.ids())

    def test_the_same_id_on_another_topic_is_another_message(self):
        self.broker.create_topic("u", 1)
        producer = self.warm_producer()
        self.broker.disconnect()
        for topic in ("t", "u"):
            producer.send(topic, Record(b"a", message_id=b"own"))
        self.broker.reconnect()
        self.assertEqual(2, producer.flush().delivered_count)
        self.assertEqual(([b"a"], [b"a"]), (self.values("t"), self.values("u")))


class RecordsTest(ProducerCase):
    """Bulks of values with the caller's ids."""

    def setUp(self):
        super().setUp()
        self.calls = []

    def publish(self, producer, *letters, **options):
        """Publish a message per letter under its upper case. Record the messages that go to the client in bulks."""
        if (limit := producer._limits.ready.get("t")) is not None:
            produce = type(limit.transport._client).produce
            limit.transport.produce = lambda topic, values, *rest: (
                self.calls.append(values) or produce(limit.transport._client, topic, values, *rest)
            )
        letters = [letter.encode() for letter in letters]
        return producer.publish("t", IdentifiedRecords(letters, [letter.upper() for letter in letters]), **options)

    def test_records_with_ids_go_to_the_client_in_one_call(self):
        producer = self.warm_producer()
        before = len(self.ids())
        report = self.publish(producer, "a", "b")
        again = producer.publish("t", [Record(b"c", message_id=b"C"), Record(b"d", message_id=b"D")])
        self.assertEqual([b"A", b"B"], [delivery.message_id for delivery in report.delivered])
        self.assertEqual([b"C", b"D"], [delivery.message_id for delivery in again.delivered])
        self.assertEqual([b"A", b"B", b"C", b"D"], self.ids()[before:])
        self.assertEqual([[b"a", b"b"], [b"c", b"d"]], self.calls)

    def test_a_retry_keeps_the_ids(self):
        producer = self.producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        report = self.publish(producer, "a", "b")
        self.assertEqual([b"A"], [delivery.message_id for delivery in report.failed])
        self.assertTrue(producer.retry(report).ok)
        self.assertEqual([b"A", b"B"], sorted(self.ids()))

    def test_ids_in_flight_are_sent_once(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        first = self.publish(producer, "a", "b", **AWAY)
        self.assertEqual(2, len(first.unknown))
        second = self.publish(producer, "b", "c", **AWAY)
        third = producer.publish("t", [Record(b"c", message_id=b"C"), Record(b"d", message_id=b"D")], **AWAY)
        self.broker.reconnect()
        reports = [producer.retry(report) for report in (first, second, third)]
        self.assertEqual([2, 2, 2], [report.delivered_count for report in reports])
        self.assertEqual(
            [[b"A", b"B"], [b"B", b"C"], [b"C", b"D"]],
            [[delivery.message_id for delivery in report.delivered] for report in reports],
        )
        self.assertEqual([b"A", b"B", b"C", b"D"], self.ids()[-4:])
        self.assertEqual((0, 0), (producer.health().outstanding_messages, producer.health().outstanding_bytes))

    def test_an_id_that_is_in_a_bulk_twice_is_sent_once(self):
        producer = self.producer()
        report = self.publish(producer, "a", "b", "a")
        self.assertEqual([0, 1, 0], [delivery.offset for delivery in report.delivered])
        self.assertEqual([b"A", b"B"], self.ids())

    def test_ids_are_free_again_once_they_are_settled(self):
        producer = self.producer()
        for _ in range(2):
            self.assertTrue(self.publish(producer, "a", "b").ok)
        self.broker.inject("produce", Fail("INVALID_RECORD"))
        self.assertEqual(1, len(self.publish(producer, "a", "b").failed))
        self.assertTrue(self.publish(producer, "a", "b").ok)
        self.assertEqual([{}], list(producer._table._by_id.values()))

    def test_only_a_message_that_is_too_large_fails(self):
        self.broker.create_topic("small", 1, max_message_bytes=1000)
        report = self.producer().publish("small", IdentifiedRecords([b"a", b"x" * 1000, b"b"], [b"1", b"2", b"3"]))
        [failed] = report.failed
        self.assertEqual((1, b"2", 2), (failed.index, failed.message_id, report.delivered_count))
        self.assertIsInstance(failed.error, MessageTooLarge)
        fits = self.producer().publish("small", IdentifiedRecords([b"a"], [b"1" * 1000]))
        self.assertIsInstance(fits.failed[0].error, MessageTooLarge)

    def test_the_budget_counts_ids(self):
        producer = self.producer(budget_bytes=2000)
        self.assertIsInstance(
            producer.publish("t", IdentifiedRecords([b"a"], [b"1" * 2000])).failed[0].error, LargerThanBudget
        )
        for _ in range(30):
            self.assertTrue(producer.publish("t", IdentifiedRecords([b"a"], [b"1" * 1000])).ok)

    def test_wrong_ids_are_refused(self):
        error = self.assertRaises(ValueError, IdentifiedRecords, [b"a"], [])
        self.assertIn("0 ids for 1 values", str(error))
        producer = self.producer()
        self.assertIn(
            "message_id", str(self.assertRaises(WrongType, producer.publish, "t", IdentifiedRecords([b"a"], ["1"])))
        )
        self.assertIn(
            "value", str(self.assertRaises(WrongType, producer.publish, "t", IdentifiedRecords(["a"], [b"1"])))
        )
        self.assertEqual([], self.ids())

    def test_a_missing_or_empty_id_is_created(self):
        report = self.producer().publish("t", IdentifiedRecords([b"a", b"b", b"c"], [b"", None, b"own"]))
        self.assertEqual([23, 23, 3], [len(delivery.message_id) for delivery in report.delivered])
        self.assertEqual(self.ids(), [delivery.message_id for delivery in report.delivered])

    def test_keys_headers_and_slices_apply(self):
        records = IdentifiedRecords([b"a", b"b"], [b"1", b"2"])
        self.assertEqual([Record(b"b", message_id=b"2")], list(records[1:]))
        self.producer().publish("t", records, key=b"k", headers=(("h", b"1"),))
        self.assertEqual(
            [(b"k", (("h", b"1"), ("message-id", b"1")))],
            [(message.key, message.headers) for message in self.broker.records("t")[:1]],
        )
        self.producer().publish("t", records, key=b"k")
        self.assertEqual([b"k"] * 4, [message.key for message in self.broker.records("t")])


class SendTest(ProducerCase):
    def test_a_flush_reports_failed_messages(self):
        producer = self.warm_producer()
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        failed = producer.send("t", b"a")
        producer.send("t", b"b")
        report = producer.flush()
        self.assertEqual(([failed], 1), ([d.message_id for d in report.failed], report.delivered_count))

    def test_a_flush_reports_messages_without_a_response_by_its_deadline(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        late = producer.send("t", b"a")
        self.assertEqual([late], [d.message_id for d in producer.flush(0).unknown])
        self.broker.reconnect()
        self.assertEqual(0, producer.flush().delivered_count)

    def test_a_flush_s_report_can_be_retried(self):
        producer = self.producer()
        producer.publish("t", [b"warm"])
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        producer.send("t", b"a", key=b"k")
        report = producer.flush()
        self.assertEqual(1, len(report.failed))
        self.assertTrue(producer.retry(report).ok)
        self.assertEqual((b"a", b"k"), (self.broker.records("t")[1].value, self.broker.records("t")[1].key))

    # Rule 4
    def test_a_flush_s_report_of_messages_in_flight_is_retried_after_the_close_by_another_producer(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        sent = [producer.send("t", b"a", key=b"k"), producer.send("t", Record(b"b"))]
        report = producer.flush(0)
        self.assertEqual((2, True), (len(report.unknown), report.retriable))
        producer.close(0)
        self.broker.reconnect()
        self.assertTrue(self.warm_producer().retry(report, timeout=3600).ok)
        self.assertEqual((sent, [b"a", b"b"]), (self.ids(), self.values()))
        self.assertEqual(b"k", self.broker.records("t")[0].key)

    def test_a_flush_counts_but_does_not_list_messages_with_a_listener(self):
        producer = self.warm_producer()
        received, all_received = [], threading.Semaphore(0)

        def listener(delivery):
            received.append(delivery)
            all_received.release()

        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"))
        sent = [producer.send("t", value, on_delivery=listener) for value in (b"a", b"b")]
        report = producer.flush()
        self.assertEqual((1, True), (report.delivered_count, report.ok))
        for _ in sent:
            self.assertTrue(all_received.acquire(timeout=50))
        self.assertEqual({sent[0]: False, sent[1]: True}, {each.message_id: each.error is None for each in received})

    # Rule 7
    def test_a_listener_that_does_not_return_delays_no_other_call(self):
        producer = self.warm_producer()
        called, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)
        producer.send("t", b"a", on_delivery=lambda delivery: (called.set(), released.wait(50)))
        self.assertTrue(called.wait(50))
        for records in ([b"b"], [Record(b"c")]):
            self.assertTrue(self.at_once(lambda records=records: producer.publish("t", records, timeout=3600)).ok)
        producer.send("t", b"d")
        self.assertEqual(2, self.at_once(lambda: producer.flush(3600)).delivered_count)

    def test_a_message_takes_room_until_its_listener_returned(self):
        producer = self.warm_producer()
        called, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)
        producer.send("t", b"a", on_delivery=lambda delivery: (called.set(), released.wait(50)))
        self.assertTrue(called.wait(50))
        self.assertEqual((0, 1), (producer.health().outstanding_messages, producer._table.messages))
        released.set()
        self.wait_until(lambda: producer._table.messages == 0)

    def test_undelivered_sends_keep_their_room_until_a_flush_collects_them(self):
        producer = self.warm_producer(budget_messages=2)
        self.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), count=2)
        for _ in range(2):
            producer.send("t", b"a")
        self.assertIsInstance(producer.publish("t", [b"b"], **AWAY).failed[0].error, QueueFull)
        self.assertEqual(2, len(producer.flush().failed))
        self.assertTrue(producer.publish("t", [b"b"]).ok)

    def test_a_list_that_another_thread_changes_is_published_unchanged(self):
        producer = self.producer()
        records = [b"a", b"b"]
        check = producer._check

        def changed(call, **options):
            records[0] = "c"
            check(call, **options)

        producer._check = changed
        self.assertTrue(producer.publish("t", records).ok)
        self.assertEqual([b"a", b"b"], self.values())

    # Rule 7
    def test_a_listener_is_notified_of_its_message_on_a_thread_of_the_library(self):
        received = []
        done = threading.Event()

        def listener(delivery):
            received.append((delivery, threading.current_thread()))
            done.set()

        producer = self.producer()
        sent = producer.send("t", b"a", on_delivery=listener)
        self.assertTrue(done.wait(50))
        [(delivery, thread)] = received
        self.assertEqual((sent, 0, None), (delivery.message_id, delivery.offset, delivery.error))
        self.assertIsNot(threading.current_thread(), thread)

    # Rule 7
    def test_listeners_are_called_although_their_thread_could_not_be_started_at_first(self):
        producer, delivered, starts = self.warm_producer(), [], []
        start = threading.Thread.start

        def fail_once(thread):
            starts.append(thread.name)
            if starts == ["kafka-producer-listeners"]:
                raise RuntimeError("can't start new thread")
            start(thread)

        self.patch(threading.Thread, "start", fail_once)
        producer.send("t", b"a", on_delivery=delivered.append)
        self.wait_until(lambda: delivered)
        self.assertEqual(["kafka-producer-listeners"] * 2, starts)
        self.assertTrue(producer.close(60).ok)

    def test_a_listener_that_raises_is_counted_and_the_next_one_is_called(self):
        done = threading.Event()
        producer = self.producer()
        producer.send("t", b"a", on_delivery=lambda delivery: 1 / 0)
        producer.send("t", b"b", on_delivery=lambda delivery: done.set())
        self.assertTrue(done.wait(50))
        self.assertEqual(1, producer.health().failed_listeners)

    def test_a_thread_that_reuses_the_id_of_an_ended_thread_may_wait(self):
        producer = self.producer()
        producer.send("t", b"a", on_delivery=lambda delivery: None)
        self.assertTrue(producer.close().ok)
        self.assertEqual({}, producer._table.callers)

    # Rule 7
    def test_waiting_inside_a_listener_raises_immediately_and_sending_works(self):
        producer = self.producer()
        outcomes = []
        done = threading.Event()

        def listener(delivery):
            calls = (
                lambda: producer.publish("t", [b"x"]),
                lambda: producer.retry(report),
                producer.flush,
                producer.close,
            )
            for call in calls:
                try:
                    call()
                except InCallbackError as error:
                    outcomes.append(error)
            producer.send("t", b"from the listener")
            done.set()

        report = producer.publish("t", [b"warm"])
        producer.send("t", b"a", on_delivery=listener)
        self.assertTrue(done.wait(50))
        self.assertEqual(4, len(outcomes))
        producer.flush()
        self.assertEqual([b"warm", b"a", b"from the listener"], self.values())

    def test_without_room_a_send_raises_queue_full_at_its_deadline(self):
        producer = self.warm_producer(budget_messages=1, publish_timeout_seconds=0)
        self.broker.disconnect()
        producer.send("t", b"a")
        self.assertRaises(QueueFull, producer.send, "t", b"b")
        self.assertRaises(QueueFull, producer.send, "t", Record(b"b", message_id=b"own"))
        self.broker.reconnect()
        producer.flush(3600)
        self.assertEqual(b"own", producer.send("t", Record(b"b", message_id=b"own")))

    # Rule 7
    def test_threads_share_a_producer(self):
        producer = self.producer()

        def work(number):
            for count in range(200):
                producer.send("t", b"%d-%d" % (number, count))
                if count % 50 == 0:
                    producer.publish("t", [b"p%d-%d" % (number, count)])

        run_together(work, range(4))
        self.assertEqual(800, producer.flush().delivered_count)
        self.assertEqual(816, len(set(self.values())))
        self.assertEqual((0, 0), (producer.health().outstanding_messages, producer.health().outstanding_bytes))


class TopicLimitChangeTest(ProducerCase):
    def test_a_flush_waits_once_for_sends_before_and_after_a_publish(self):
        producer = self.warm_producer()
        producer.send("t", b"before")
        producer._limits.ready.clear()
        producer.publish("t", [b"the limit is asked for again"], timeout=3600)
        producer.send("t", b"after")
        self.assertTrue(producer.flush(3600).ok)
        self.assertEqual([], producer._table.unfinished())


class CloseTest(ProducerCase):
    def test_close_reports_abandoned_messages(self):
        producer = self.warm_producer()
        producer.publish("t", [b"warm"])
        self.broker.disconnect()
        producer.send("t", b"a")
        report = producer.close(0)
        self.assertEqual(1, len(report.unknown))
        self.assertIsInstance(report.unknown[0].error, DeliveryAbandoned)

    def test_a_close_calls_the_listeners_of_abandoned_messages_before_it_returns(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        for _ in range(20):
            producer, received = self.producer(), []
            for _ in range(3):
                producer.send("t", b"a", on_delivery=received.append)
            self.assertTrue(producer.close(0).ok)
            self.assertEqual(3, len(received))

    def test_messages_that_reached_no_client_are_failed(self):
        self.broker.inject("metadata", Fail("REQUEST_TIMED_OUT"), count=None)
        producer = self.producer()
        producer.send("t", b"a")
        self.assertEqual(1, len(producer.close(0).failed))

    def test_closing_twice_returns_the_same_report(self):
        producer = self.producer()
        self.assertIs(producer.close(), producer.close())

    def test_every_call_of_a_closed_producer_is_refused(self):
        producer = self.producer()
        report = producer.publish("t", [b"a"])
        producer.close()
        for call in (
            lambda: producer.publish("t", [b"a"]),
            lambda: producer.send("t", b"a"),
            lambda: producer.retry(report),
            producer.flush,
            producer.transaction,
        ):
            self.assertRaises(ClosedError, call)

    def test_leaving_the_block_delivers_sent_messages(self):
        with self.producer() as producer:
            producer.send("t", b"a")
        self.assertEqual([b"a"], self.values())


class HealthTest(ProducerCase):
    def test_the_age_of_the_oldest_unacknowledged_message_grows(self):
        producer = self.warm_producer()
        self.broker.disconnect()
        self.assertEqual(0, producer.health().oldest_unacknowledged_seconds)
        producer.send("t", b"a")
        self.clock.advance(30)
        self.assertEqual(30, producer.health().oldest_unacknowledged_seconds)
        self.assertEqual(1, producer.health().outstanding_messages)

    def test_a_missing_permission_is_reported_even_if_the_error_is_about_one_message(self):
        self.broker.inject("produce", Fail("TOPIC_AUTHORIZATION_FAILED"))
        producer = self.producer()
        producer.publish("t", [b"a"])
        self.assertEqual("TOPIC_AUTHORIZATION_FAILED", producer.health().last_error.name)

    def test_the_last_client_error_is_reported(self):
        self.broker.inject("produce", LoseAnswer(0))
        producer = self.producer()
        producer.publish("t", [b"a"])
        self.assertEqual("_TRANSPORT", producer.health().last_error.name)


class TransactionTest(ProducerCase):
    def test_a_transaction_needs_a_transactional_id(self):
        self.assertRaises(ConfigurationError, self.producer().transaction)
