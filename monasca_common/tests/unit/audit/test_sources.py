# SPDX-License-Identifier: Apache-2.0
"""Sources count acknowledged messages once, in the bucket of their timestamp."""

import dataclasses
from collections import Counter

import fixtures
from oslotest import base

from monasca_common.audit.reporter import DeliveryTotals, audited_source
from monasca_common.kafka import KafkaProducer, open_producer
from monasca_common.kafka.message import Record
from monasca_common.kafka.transport.memory import Fail
from monasca_common.kafka.transport.memory.log import Topic
from monasca_common.pipeline.spark import worker_producer
from monasca_common.tests.unit.audit.audit_case import BUCKET_MS, START_MS, TOPIC, AuditCase
from monasca_common.tests.unit.kafka.transactional_memory import TransactionalMemoryProducer

_BUCKET = ("t", 0)


class SourcesTest(AuditCase):
    def counted(self):
        """Return {number of the bucket: messages} of all reports."""
        found = {}
        for report in self.reports():
            for count in report.counts:
                number = (count.bucket_ms - START_MS) // BUCKET_MS
                found[number] = found.get(number, 0) + count.messages
        return found

    def append_with_own_time(self, message):
        """Append with the time of the log, like a topic with ``message.timestamp.type = LogAppendTime``."""
        log = self.kafka.broker.find_topic(message.topic).partitions[message.partition]
        return log.append(dataclasses.replace(message, timestamp_ms=self.clock.time_ms()))

    def test_every_way_of_sending_is_counted_once(self):
        with self.audited_producer() as (producer, reporter):
            producer.publish(TOPIC, [b"bulk"] * 10)
            producer.publish(TOPIC, [Record(b"own id", message_id=b"1"), b"beside it"])
            for number in range(700):
                producer.send(TOPIC, b"%d" % number)
            heard = []
            producer.send(TOPIC, b"with a listener", on_delivery=heard.append)
            producer.flush()
            reporter.report()

        self.assertEqual({0: 713}, self.counted())

    def test_messages_are_in_the_buckets_of_their_timestamps(self):
        with self.audited_producer() as (producer, reporter):
            for _ in range(3):
                producer.publish(TOPIC, [b"x"] * 5)
                producer.send(TOPIC, b"y")
                producer.flush()
                self.clock.advance(BUCKET_MS / 1000)
            producer.publish(TOPIC, [Record(b"late", timestamp_ms=START_MS + 1)])
            producer.publish(TOPIC, [b"x"])
            reporter.report()

        self.assertEqual({0: 7, 1: 6, 2: 6, 3: 1}, self.counted())
        by_time = {}
        for message in self.kafka.broker.records(TOPIC):
            number = (message.timestamp_ms - START_MS) // BUCKET_MS
            by_time[number] = by_time.get(number, 0) + 1
        self.assertEqual(by_time, self.counted())

    def test_a_message_acknowledged_in_the_next_bucket_counts_in_the_bucket_of_its_timestamp(self):
        with self.audited_producer() as (producer, reporter):
            producer.publish(TOPIC, [b"before"])
            self.clock.advance(BUCKET_MS / 1000 - 1)
            self.kafka.broker.disconnect()
            producer.send(TOPIC, b"at the end")
            self.clock.advance(2.0)
            self.kafka.broker.reconnect()
            producer.publish(TOPIC, [b"after"])
            producer.flush()
            reporter.report()

        self.assertEqual({0: 2, 1: 1}, self.counted())

    def test_a_clock_that_is_set_back_moves_no_message_to_another_bucket(self):
        with self.audited_producer() as (producer, reporter):
            self.clock.advance(BUCKET_MS / 1000)
            producer.publish(TOPIC, [b"x"] * 3)
            self.clock._start_ms -= BUCKET_MS // 2
            producer.publish(TOPIC, [b"y"] * 2)
            reporter.report()

        self.assertEqual({0: 2, 1: 3}, self.counted())

    def test_undelivered_messages_do_not_count_and_a_retry_counts_once(self):
        with self.audited_producer() as (producer, reporter):
            self.kafka.broker.disconnect()
            report = producer.publish(TOPIC, [b"x"] * 4, timeout=0.0)
            self.assertEqual(4, len(report.unknown))
            self.kafka.broker.reconnect()
            report = producer.retry(report)
            self.assertTrue(producer.retry(report).ok)
            reporter.report()

        self.assertEqual({0: 4}, self.counted())
        self.assertEqual(4, len(self.kafka.broker.records(TOPIC)))

    def test_delivered_messages_of_a_bulk_count_once_when_the_rest_is_sent_again(self):
        with self.audited_producer() as (producer, reporter):
            self.kafka.broker.inject("produce", Fail("NOT_ENOUGH_REPLICAS"), nth=3, count=2)
            report = producer.publish(TOPIC, [b"1", b"22", b"333", b"4444", b"55555"])
            self.assertEqual([2, 3], [each.index for each in report.failed])
            reporter.report()
            self.assertEqual({0: 3}, self.counted())

            self.assertTrue(producer.retry(report).ok)
            reporter.report()

        self.assertEqual({0: 5}, self.counted())

    def test_a_bulk_acknowledged_late_counts_in_the_bucket_of_its_timestamps(self):
        with self.audited_producer() as (producer, reporter):
            producer.publish(TOPIC, [b"the log keeps our time"])
            self.clock.advance(BUCKET_MS / 1000 - 1)
            self.kafka.broker.disconnect()
            late = producer.publish(TOPIC, [b"22", b"333"], timeout=0.0)
            self.clock.advance(3 * BUCKET_MS / 1000)
            self.kafka.broker.reconnect()
            producer.publish(TOPIC, [b"later"])
            self.assertTrue(producer.retry(late).ok)
            reporter.report()

        self.assertEqual({0: 3, 3: 1}, self.counted())

    def test_messages_that_wait_for_a_broker_count_in_the_buckets_in_which_they_were_sent(self):
        with self.audited_producer() as (producer, reporter):
            producer.publish(TOPIC, [b"the log keeps our time"])
            self.kafka.broker.disconnect()
            producer.send(TOPIC, b"held up")
            for _ in range(5):
                self.clock.advance(BUCKET_MS / 1000)
                producer.send(TOPIC, b"held up as well")
            self.kafka.broker.reconnect()
            self.assertTrue(producer.flush().ok)
            reporter.report()

        self.assertEqual(dict.fromkeys(range(1, 6), 1) | {0: 2}, self.counted())

    def test_messages_with_log_append_time_count_in_the_buckets_of_the_log(self):
        with self.audited_producer() as (producer, reporter):
            producer.publish(TOPIC, [b"1"])
            self.clock.advance(BUCKET_MS / 1000)
            self.useFixture(fixtures.MockPatchObject(Topic, "append", new=self.append_with_own_time))
            self.kafka.broker.disconnect()
            for _ in range(3):
                producer.send(TOPIC, b"y")
            self.clock.advance(BUCKET_MS / 1000)
            self.kafka.broker.reconnect()
            producer.flush()
            producer.publish(TOPIC, [b"x"] * 5)
            reporter.report()

        self.assertEqual({0: 1, 2: 8}, self.counted())

    def test_a_transaction_counts_when_it_is_committed(self):
        totals = DeliveryTotals(60)
        producer = KafkaProducer(
            self.kafka.producer_settings(transactional_id="one", tap=totals.tap),
            lambda batch_bytes, on_error: TransactionalMemoryProducer(
                self.kafka.producer_settings(), batch_bytes=batch_bytes, on_error=on_error
            ),
        )
        self.addCleanup(producer.close, 1.0)
        with producer.transaction() as transaction:
            transaction.send(TOPIC, b"committed")
            producer.flush()
            self.assertEqual({}, totals.take())
        with self.assertRaises(ValueError), producer.transaction() as transaction:
            transaction.send(TOPIC, b"aborted")
            producer.flush()
            raise ValueError

        self.assertEqual([1], list(totals.take().values()))

    def test_each_producer_of_audited_settings_is_counted(self):
        with self.reporter("database") as reporter:
            settings = reporter.audited(self.kafka.producer_settings())
            for number in range(3):
                with open_producer(settings) as producer:
                    producer.publish(TOPIC, [b"%d" % number] * (number + 1))
            reporter.report()

        self.assertEqual({0: 6}, self.counted())
        self.assertEqual({("producer", "app")}, {(each.tier, each.application) for each in self.reports()})

    def test_a_source_with_an_unusable_folder_sends_and_reports(self):
        self.useFixture(fixtures.FakeLogger())
        unusable = dataclasses.replace(self.settings, folder="/dev/null/audit")
        source = audited_source(self.kafka.producer_settings(), unusable, "replay")
        with source as settings, open_producer(settings) as producer:
            self.assertTrue(producer.publish(TOPIC, [b"x"]).ok)

        self.assertEqual([1], [count.messages for report in self.reports() for count in report.counts])

    def test_a_process_of_spark_reports_its_messages(self):
        """The driver has pickled the settings of the process."""
        worker_producer.worker_producer.cache_clear()
        self.addCleanup(worker_producer.worker_producer.cache_clear)
        settings = worker_producer.portable_producer(self.kafka.producer_settings(), self.settings, "spark-aggregate")
        producer = worker_producer.worker_producer(settings)
        producer.publish(TOPIC, [b"x"] * 3).raise_for_undelivered()
        producer.close(1.0)
        worker_producer._OPEN.close()

        [report] = self.reports()
        self.assertEqual(("producer", "spark-aggregate"), (report.tier, report.application))
        self.assertEqual([3], [each.messages for each in report.counts])


class DeliveryTotalsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.totals = DeliveryTotals(60)

    def test_counts_of_one_bucket_are_added_up(self):
        self.totals.tap().add(Counter({_BUCKET: 2}))
        self.totals.tap().add(Counter({_BUCKET: 1, ("u", 0): 1}))
        self.assertEqual({_BUCKET: 3, ("u", 0): 1}, self.totals.take())
        self.assertEqual({}, self.totals.take())

    def test_deliveries_of_a_transaction_count_at_its_commit(self):
        tap = self.totals.tap()
        for committed, expected in ((False, {}), (True, {_BUCKET: 1})):
            tap.begin()
            tap.add(Counter({_BUCKET: 1}))
            self.assertEqual({}, self.totals.take())
            tap.end(committed=committed)
            self.assertEqual(expected, self.totals.take())

    def test_a_transaction_does_not_withhold_the_counts_of_other_producers(self):
        self.totals.tap().begin()
        self.totals.tap().add(Counter({_BUCKET: 1}))
        self.assertEqual({_BUCKET: 1}, self.totals.take())
