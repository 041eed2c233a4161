# SPDX-License-Identifier: Apache-2.0
"""The reports of readers, of the counter and of the log agree."""

import random
import threading

import fixtures

from monasca_common.audit.reader_audit import ReaderAudit
from monasca_common.audit.reports import COPIES
from monasca_common.audit.runs import intersection
from monasca_common.kafka import Batch, KafkaConsumer, KafkaProducer, Processor, TransportError
from monasca_common.kafka.errors import FatalError, RetriableError
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.tests.unit import CASES
from monasca_common.tests.unit.audit.audit_case import BUCKET_MS, START_MS, TOPIC, AuditCase, reconciliations
from monasca_common.tests.unit.kafka.transactional_memory import (
    TransactionalMemoryConsumer,
    TransactionalMemoryProducer,
)

ONE = TopicPartition(TOPIC, 0)
_BETWEEN_SECONDS = 0.1  # a thread that still runs after this time waits for this thread


class ReadersTest(AuditCase):
    def fill(self, messages, bucket=0, partition=0, **facts):
        records = [Record(b"x", timestamp_ms=START_MS + bucket * BUCKET_MS, partition=partition, **facts)] * messages
        self.kafka.producer().publish(TOPIC, records).raise_for_undelivered()

    def test_sent_counted_and_handled_messages_agree_in_every_bucket(self):
        with self.audited_producer() as (producer, reporter):
            for _ in range(3):
                producer.publish(TOPIC, [b"x"] * 7)
                producer.send(TOPIC, b"y")
                producer.flush()
                self.clock.advance(BUCKET_MS / 1000)
            reporter.report()
        self.count()
        self.read()

        wanted = {(bucket, tier): (8, 8, 0, 0) for bucket in range(3) for tier in ("producer", "broker", "database")}
        self.assertEqual(wanted, self.figures())

    def test_polled_messages_without_a_commit_are_not_handled(self):
        self.fill(10)
        self.count()
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            hook.after_poll(self.poll())
            hook.before_commit({ONE: 4})
            reporter.report()

        self.assertEqual((10, 4, 0, 6), self.figures()[0, "database"])

    def poll(self):
        with self.kafka.consumer(TOPIC, "by hand") as consumer:
            while not (batch := consumer.poll(100, 0.0)).partitions:
                pass
            return batch

    def test_a_range_that_is_polled_again_after_a_seek_is_reported_as_it_is_committed(self):
        self.fill(10)
        self.count()
        batch = self.poll()
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            hook.after_poll(batch)
            hook.before_commit({ONE: 5})
            hook.after_poll(type(batch)((batch.partitions[0].slice(5, 10),)))
            hook.before_commit({ONE: 10})
            reporter.report()

        self.assertEqual((10, 10, 0, 0), self.figures()[0, "database"])

    def test_skipped_messages_are_lost(self):
        self.fill(10)
        self.count()
        batch = self.poll()
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            for first, following in ((0, 4), (7, 10)):
                part = batch.partitions[0].select(range(first, following))
                hook.after_poll(type(batch)((part,)))
            hook.before_commit({ONE: 10})
            reporter.report()

        self.assertEqual((10, 7, 3, 0), self.figures()[0, "database"])

    def test_messages_revoked_before_their_commit_are_not_reported(self):
        self.fill(10)
        self.count()
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            hook.after_poll(self.poll())
            hook.before_commit({ONE: 3})
            hook.after_revoke([ONE])
            reporter.report()
        self.assertEqual((10, 3, 0, 7), self.figures()[0, "database"])

    def test_a_reader_with_its_own_position_reports_it(self):
        self.fill(10)
        self.count()
        self.read(lambda part: None, group="readers")
        with self.reporter("database", "readers") as reporter:
            hook = ReaderAudit(reporter, positions={ONE: 10})
            hook.before_commit({ONE: 10})
            hook.before_commit({ONE: 10})
            reporter.report()

        resumed = [each for report in self.reports() for each in report.handled if each.position is not None]
        self.assertEqual([(10, 10, 10)], [(each.first, each.next, each.position) for each in resumed])

    def test_messages_between_a_readers_position_and_its_first_read_are_lost(self):
        self.fill(10)
        self.count()
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter, positions={ONE: 2})
            batch = self.poll()
            hook.after_poll(type(batch)((batch.partitions[0].slice(6, 10),)))
            hook.before_commit({ONE: 10})
            reporter.report()

        self.assertEqual((8, 4, 4, 0), self.figures()[0, "database"])

    def test_messages_polled_again_are_reported_as_they_are_committed(self):
        self.fill(10)
        self.count()
        (part,) = self.poll().partitions
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            for first, following in ((0, 5), (5, 10), (0, 5), (5, 10)):
                hook.after_poll(Batch((part.slice(first, following),)))
            hook.before_commit({ONE: 5})
            reporter.report()

        self.assertEqual((10, 5, 0, 5), self.figures()[0, "database"])

    def test_a_poll_while_another_thread_commits_loses_no_range(self):
        self.fill(10)
        self.count()
        (part,) = self.poll().partitions
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            hook.after_poll(Batch((part.slice(0, 5),)))
            polling = threading.Thread(target=hook.after_poll, args=(Batch((part.slice(5, 10),)),))

            def poll_meanwhile(*runs):
                """Poll, if possible, after the commit has read the ranges and before it removes its own."""
                if polling.ident is None:
                    polling.start()
                    polling.join(_BETWEEN_SECONDS)
                return intersection(*runs)

            with fixtures.MonkeyPatch("monasca_common.audit.reader_audit.intersection", poll_meanwhile):
                hook.before_commit({ONE: 5})
                polling.join()
            hook.before_commit({ONE: 10})
            hook.after_commit({ONE: None})
            reporter.report()

        self.assertEqual((10, 10, 0, 0), self.figures()[0, "database"])

    def test_a_failing_audit_does_not_affect_the_reader(self):
        self.fill(5)
        with self.reporter("database") as reporter:
            hook = ReaderAudit(reporter)
            hook.before_commit = None
            with self.kafka.consumer(TOPIC, "readers") as consumer:
                drained = self.kafka.drain(Processor(consumer, lambda part: None, hooks=[hook]))

        self.assertEqual(5, drained.committed[ONE])


class Committing(TransactionalMemoryProducer):
    def send_offsets(self, offsets, group_metadata, timeout):
        self.offsets = offsets

    def commit_transaction(self, timeout):
        if (error := self.outcomes.pop(0)) is not None:
            raise error
        self.group.offsets.update(self.offsets)


class TransactionsTest(AuditCase):
    """Messages handled by a transactional processor are reported if its transaction was, or may have been,
    committed."""

    def setUp(self):
        super().setUp()
        self.kafka.producer().publish(TOPIC, [Record(b"x", partition=0)] * 10).raise_for_undelivered()
        self.count()
        settings = self.kafka.producer_settings(transactional_id="one", transaction_timeout_seconds=0.0)
        self.transactional = KafkaProducer(settings, self.opened_transport)
        self.addCleanup(self.transactional.close, 1.0)
        self.seen = []

    def opened_transport(self, batch_bytes, on_error):
        settings = self.kafka.producer_settings()
        self.client = Committing(settings, batch_bytes=batch_bytes, on_error=on_error)
        self.client.group = self.kafka.broker.group("readers")
        return self.client

    def handle(self, part):
        """Handle messages; ``seen`` has the reports of earlier attempts."""
        self.reporter_of_reader.report()
        self.seen.append(self.handled())

    def handled(self):
        return [(each.first, each.next) for report in self.reports() for each in report.handled]

    def read_in_transactions(self, *outcomes):
        """``outcomes``: the error that each attempt to commit raises, or ``None``."""
        self.client.outcomes = list(outcomes)
        reading = self.kafka.consumer_settings(TOPIC, "readers")
        with (
            self.reporter("notification", "readers") as self.reporter_of_reader,
            KafkaConsumer(reading, TransactionalMemoryConsumer(reading)) as consumer,
        ):
            processor = Processor(
                consumer,
                self.handle,
                producer=self.transactional,
                transactional=True,
                hooks=[ReaderAudit(self.reporter_of_reader)],
            )
            try:
                self.kafka.drain(processor)
            finally:
                self.reporter_of_reader.report()
                self.seen.append(self.handled())

    def test_messages_of_an_aborted_transaction_are_reported_after_they_are_handled_again(self):
        self.read_in_transactions(TransportError("refused"), None)

        self.assertEqual([[], [], [(0, 10)]], self.seen)

    def test_messages_of_a_commit_with_unknown_outcome_are_reported_at_the_end(self):
        self.assertRaises(FatalError, self.read_in_transactions, RetriableError("no response"))

        self.assertEqual([[], []], self.seen)
        self.assertEqual([(0, 10)], self.handled())


class CounterTest(AuditCase):
    def fill(self, *records):
        """Publish one by one, because concurrent records with one id are one message."""
        producer = self.kafka.producer()
        for record in records:
            producer.publish(TOPIC, [record]).raise_for_undelivered()

    def record(self, message_id, bucket=0, partition=0):
        at_ms = START_MS + bucket * BUCKET_MS
        return Record(b"x", timestamp_ms=at_ms, partition=partition, message_id=message_id)

    def test_duplicates_are_records_with_equal_ids_within_a_bucket(self):
        self.fill(*[self.record(b"%d" % number) for number in range(10)])
        self.fill(self.record(b"3"), self.record(b"3", partition=1), self.record(b"4"), self.record(b"5", bucket=1))
        self.count()
        found = self.reconciliations()

        self.assertEqual((13, 3), (found[0, "broker"].messages, found[0, "broker"].duplicates))
        self.assertEqual((1, 0), (found[1, "broker"].messages, found[1, "broker"].duplicates))

    def test_more_counts_than_the_budget_of_the_producer_are_reported(self):
        self.fill(*[self.record(b"%d" % number, bucket=number) for number in range(5)])
        self.count(budget_messages=2)

        self.assertEqual([1] * 5, [self.reconciliations()[bucket, "broker"].messages for bucket in range(5)])

    def test_ids_with_future_timestamps_do_not_evict_other_ids(self):
        self.useFixture(fixtures.MonkeyPatch("monasca_common.operations.audit.log_counter._MAX_IDS", 2))
        ahead = [self.record(b"%d" % number, bucket=2000 + number) for number in range(5)]
        self.fill(self.record(b"a"), *ahead, self.record(b"a"))
        self.count()

        self.assertEqual(1, self.reconciliations()[0, "broker"].duplicates)

    def test_a_log_that_is_counted_twice_has_the_same_messages_and_duplicates(self):
        self.fill(*[self.record(b"%d" % (number % 5), partition=number % 2) for number in range(12)])
        self.count("one")
        once = self.reconciliations()
        self.count("another")

        self.assertEqual((12, 7), (once[0, "broker"].messages, once[0, "broker"].duplicates))
        again = self.reconciliations()[0, "broker"]
        self.assertEqual((12, 7), (again.messages, again.duplicates))

    def test_a_counter_resumes_at_its_committed_offset(self):
        self.fill(self.record(b"1"))
        self.count()
        self.fill(self.record(b"2"))
        self.count()

        ranges = [count.offsets[0] for report in self.reports() for count in report.counts]
        self.assertEqual([((0, 1),), ((1, 2),)], [tuple(map(tuple, each)) for each in ranges])

    def test_messages_counted_again_after_a_restart_count_once(self):
        self.fill(*[self.record(b"%d" % number) for number in range(10)])
        self.count()
        self.fill(self.record(b"10"))
        self.count(again_from=dict.fromkeys(self.partitions(), 0))

        self.assertEqual(11, self.reconciliations()[0, "broker"].messages)

    def test_messages_from_before_a_counters_start_are_not_missing_after_its_restart(self):
        """No message arrived before the end of the first counter."""
        with self.audited_producer() as (producer, reporter):
            producer.publish(TOPIC, [b"before"] * 10)
            reporter.report()
            self.clock.advance(BUCKET_MS / 1000)
            began_ms = self.clock.time_ms()
            self.count(
                since_ms=began_ms, again_from={tp: self.kafka.broker.watermarks(tp)[1] for tp in self.partitions()}
            )
            self.assertEqual([(0, "producer")], list(self.figures()))
            producer.publish(TOPIC, [Record(b"late", timestamp_ms=START_MS)] * 3)
            producer.publish(TOPIC, [b"after"] * 5)
            reporter.report()
        self.count()

        self.assertEqual({(0, "producer"), (1, "producer"), (1, "broker")}, self.figures().keys())
        self.assertEqual((5, 5, 0, 0), self.figures()[1, "broker"])

    def test_the_tier_of_a_copy_is_known(self):
        self.fill(self.record(b"1"))
        self.count(tier=next(iter(COPIES)))

        self.assertEqual({"mirror"}, {report.tier for report in self.reports()})


class CleanRunsTest(AuditCase):
    """Random runs without losses, with brokers in memory, are never reported as incomplete. Messages are at most 30
    s old, and all reports arrive within 25 s, so the grace period is sufficient."""

    def test_random_runs_have_no_missing_messages(self):
        for seed in range(min(CASES, 60)):
            with self.subTest(seed=seed):
                self.run_once(random.Random(seed))

    def run_once(self, chance):
        self.open_broker()
        self.count(since_ms=START_MS)
        with self.audited_producer() as (producer, reporter):
            acts = (reporter.report, self.count, self.read)
            for _ in range(chance.randint(2, 8)):
                if chance.random() < 0.5:
                    producer.publish(TOPIC, [b"x"] * chance.randint(1, 20), key=chance.choice((None, b"k")))
                    for _ in range(chance.randint(0, 5)):
                        producer.send(TOPIC, b"y")
                    late_ms = max(START_MS, self.clock.time_ms() - chance.randrange(30_000))
                    producer.publish(TOPIC, [Record(b"late", timestamp_ms=late_ms)])
                    producer.flush()
                self.clock.advance(chance.uniform(5, 25))
                for act in chance.sample(acts, k=3):
                    act()
                    self.assertEqual([], self.incomplete())
            reporter.report()
        self.count()
        self.read()
        wrong = {key: each for key, each in self.figures().items() if each[2] or each[3]}
        self.assertEqual({}, wrong)
        self.assertEqual([], self.incomplete())
        self.assertEqual(0, sum(each.duplicates + each.surplus for each in self.reconciliations().values()))

    def incomplete(self):
        """Return the reconciliations that would be alarms now."""
        found = reconciliations(self.reports(), self.clock.time_ms(), self.settings)
        return [each for each in found if each.verdict.is_final]
