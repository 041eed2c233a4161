# SPDX-License-Identifier: Apache-2.0
"""The main guarantee: responses are lost or late, callers retry, and every message is read once. With each guarantee
removed, the same check must fail.
"""

import importlib
import os
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from monasca_common.kafka.errors import DeliveryAbandoned, MessageTooLarge
from monasca_common.kafka.message import Record
from monasca_common.kafka.outgoing import new_id_prefix
from monasca_common.kafka.producer import producer as producer_module
from monasca_common.kafka.producer.outcome import Outcome
from monasca_common.kafka.producer.producer import KafkaProducer
from monasca_common.kafka.producer.report import DeliveryReport
from monasca_common.kafka.producer.table import DeliveryAttempt, next_attempt
from monasca_common.kafka.transport import confluent_producer, librdkafka_options, native
from monasca_common.kafka.transport.bounded import BoundedProducer
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka.producer_case import SECONDS, Logged, ProducerCase, doubled
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

PARTITIONS = 2
BULKS, BULK_SIZE = 30, 20
CALLER_SECONDS = 0.1
LATE_SECONDS = 0.4
RETRIES = 1000
# Small batches create many requests whose responses can be lost. A dropped response is detected after a second.
OPTIONS = {"batch.num.messages": "5", "socket.timeout.ms": "1000", "reconnect.backoff.max.ms": "200"}
# 1.1 MB of incompressible data: more than a topic accepts by default.
TOO_LARGE = os.urandom(1_100_000)
TRIES = 5  # attempts until a mutant breaks the guarantee
_UNLIMITED_BYTES = 1_000_000_000


# Producers that each lack one guarantee: a test that still passes with them proves nothing.


@contextmanager
def producer_options(**overrides):
    """Create clients with options that the library never uses."""
    names = {name.replace("_", "."): value for name, value in overrides.items()}

    def options(settings):
        return {**librdkafka_options.producer_options(settings), **names}

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(confluent_producer, "producer_options", options))
        if native.reason() is None:
            native_producer = importlib.import_module(f"{native.__name__}.producer")
            patches.enter_context(mock.patch.object(native_producer, "producer_options", options))
        yield


def short_message_timeout():
    return producer_options(message_timeout_ms=1000)


def a_new_id_on_retry():
    """Give each attempt after the first a new id, so that it is another message."""

    def another_message(old, bulk):
        attempt = next_attempt(old, bulk)
        attempt.message_id = new_id_prefix()
        return attempt

    return mock.patch.object(producer_module, "next_attempt", another_message)


def produces_again_while_queued():
    """Produce an undelivered message again under its id, although it is still in flight."""

    def worth_sending(attempt):
        produced_again = attempt.outcome is None and not attempt.bulk.values
        return attempt.outcome is not Outcome.DELIVERED and not produced_again

    return mock.patch.object(DeliveryAttempt, "is_worth_sending", property(worth_sending))


def publishes_again():
    """Publish undelivered messages as if they were new, like a caller without `retry`."""

    def retry(self, report: DeliveryReport, *, timeout=None):
        now = report.with_attempts(report.latest())
        left = [attempt for attempt in report.latest().values() if attempt.outcome is not Outcome.DELIVERED]
        if not left:
            return now
        again = self.publish(left[0].bulk.topic, [attempt.record for attempt in left], timeout=timeout)
        return DeliveryReport(again._attempts, bulk=again._bulk, delivered_before=now.delivered_count)

    return mock.patch.object(KafkaProducer, "retry", retry)


def no_size_check():
    def ask(client, topics, timeout):
        return dict.fromkeys(topics, _UNLIMITED_BYTES)

    return mock.patch.object(BoundedProducer, "max_message_bytes", ask)


@dataclass(frozen=True)
class Aftermath:
    """The first and the last reports of callers, the messages of a reader by id, and the content of the log."""

    unknown_at_first: int
    delivered: list[bytes]
    undelivered: int
    read: dict[bytes, bytes]
    log: list[Logged]


class LostAnswersCase(ProducerCase):
    seed = 7

    def lose_answers(self, *, dropped=2):
        """Publish bulks whose responses are lost or late; the caller retries each report until all messages are
        delivered."""
        topic = self.fixture.topic(PARTITIONS)
        producer = self.producer(options=OPTIONS)
        producer.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        for fault in (
            Fault.cut_answer(ApiKey.PRODUCE, probability=0.1, seed=self.seed, times=8),
            Fault.drop_answer(ApiKey.PRODUCE, probability=0.05, seed=self.seed, times=dropped),
            Fault.delay_answer(ApiKey.PRODUCE, seconds=LATE_SECONDS, probability=0.1, seed=self.seed, times=8),
        ):
            self.fixture.proxy.add(fault)
        unknown_at_first, reports = 0, []
        for bulk in range(BULKS):
            values = [b"%d/%d" % (bulk, number) for number in range(BULK_SIZE)]
            report = producer.publish(topic, values, timeout=CALLER_SECONDS)
            unknown_at_first += len(report.unknown)
            for _ in range(RETRIES):
                if report.ok:
                    break
                report = producer.retry(report, timeout=CALLER_SECONDS)
            reports.append(report)
        producer.close(SECONDS)
        return Aftermath(
            unknown_at_first,
            [delivery.message_id for report in reports for delivery in report.delivered],
            sum(len(report.failed) + len(report.unknown) for report in reports),
            self.read(topic, PARTITIONS),
            [record for record in self.log(topic, PARTITIONS) if record.value != b"warm"],
        )

    def check_that_all_was_delivered(self, aftermath):
        self.assertTrue(0 < aftermath.unknown_at_first < BULKS * BULK_SIZE)  # some but not all of the messages
        self.assertEqual(0, aftermath.undelivered)

    @each_once()
    def check_that_a_reader_sees_each_once(self, aftermath):
        self.assertEqual(set(), set(aftermath.delivered) - set(aftermath.read))
        counts = Counter(value for value in aftermath.read.values() if value != b"warm")
        self.assertEqual({b"%d/%d" % (bulk, n): 1 for bulk in range(BULKS) for n in range(BULK_SIZE)}, dict(counts))

    @each_once()
    def check_that_the_log_holds_each_once(self, aftermath):
        self.assertEqual((BULKS * BULK_SIZE, 0), (len(aftermath.log), doubled(aftermath.log)))


class LargeNeighboursCase(ProducerCase):
    """Records are too large for one topic, while responses for records of another topic are lost."""

    seed = 7
    rounds = 10

    def publish_beside_large_records(self):
        """Return the log of the topic with small records, and the outcomes of the large records."""
        topic, other = self.fixture.topic(), self.fixture.topic()
        producer = self.producer(options=OPTIONS)
        for name in (topic, other):
            producer.publish(name, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        # A large record is rejected while small records are written but unanswered, and their responses never arrive.
        self.fixture.proxy.add(
            Fault.delay_answer(ApiKey.PRODUCE, seconds=0.05, where=lambda request: other.encode() in request.frame)
        )
        self.fixture.proxy.add(
            Fault.cut_answer(
                ApiKey.PRODUCE, probability=0.4, seed=self.seed, where=lambda request: topic.encode() in request.frame
            )
        )
        outcomes = []
        for number in range(self.rounds):
            producer.send(other, TOO_LARGE, on_delivery=outcomes.append)
            report = producer.publish(topic, [b"%d/%d" % (number, n) for n in range(BULK_SIZE)], timeout=SECONDS)
            self.assertTrue(report.ok, repr(report))
        producer.close(SECONDS)
        return self.log(topic), outcomes

    @each_once()
    def check_that_the_log_holds_each_once(self, log):
        self.assertEqual((self.rounds * BULK_SIZE + 1, 0), (len(log), doubled(log)))


class TestLostAnswers(LostAnswersCase):
    # Rule 1
    def test_messages_retried_until_delivered_are_read_once_and_in_the_log_once(self):
        aftermath = self.lose_answers()
        self.check_that_all_was_delivered(aftermath)
        self.check_that_a_reader_sees_each_once(aftermath)
        self.check_that_the_log_holds_each_once(aftermath)

    # Rule 3
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_retries_with_new_ids_is_read_twice(self):
        with publishes_again():
            aftermath = self.lose_answers()
        self.assertRaises(self.failureException, self.check_that_a_reader_sees_each_once, aftermath)

    # Rule 4
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_produces_queued_messages_again_duplicates_records_but_not_messages_read_by_id(self):
        # Responses are not dropped: until the client detects a dropped response, this mutant writes more than the five
        # batches that a broker remembers, and the resulting out-of-order sequence is fatal for the client.
        with produces_again_while_queued():
            self.check_that_the_log_is_doubled_but_not_what_is_read(dropped=0)

    # Rule 1
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_with_a_message_timeout_duplicates_records_but_not_messages_read_by_id(self):
        with short_message_timeout():
            self.check_that_the_log_is_doubled_but_not_what_is_read()

    def check_that_the_log_is_doubled_but_not_what_is_read(self, **facts):
        """Repeat until it happens, because the timing of responses and requests differs between machines."""
        for _ in range(TRIES):
            aftermath = self.lose_answers(**facts)
            self.check_that_a_reader_sees_each_once(aftermath)
            if doubled(aftermath.log):
                break
        self.assertRaises(self.failureException, self.check_that_the_log_holds_each_once, aftermath)


@periodic("like TestLostAnswers, with the driver confluent")
class TestLostAnswersOnConfluent(LostAnswersCase):
    driver = "confluent"
    test_all_is_read_once = TestLostAnswers.test_messages_retried_until_delivered_are_read_once_and_in_the_log_once


class TestLargeNeighbours(LargeNeighboursCase):
    # Rule 2
    def test_a_record_that_is_too_large_is_not_sent_so_adjacent_records_are_not_duplicated(self):
        log, outcomes = self.publish_beside_large_records()
        self.assertEqual([MessageTooLarge] * self.rounds, [type(delivery.error) for delivery in outcomes])
        self.check_that_the_log_holds_each_once(log)

    # Rule 2
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_sends_a_record_that_is_too_large_duplicates_adjacent_records(self):
        with no_size_check():
            for _ in range(TRIES):
                log, _ = self.publish_beside_large_records()
                if doubled(log):
                    break
        self.assertRaises(self.failureException, self.check_that_the_log_holds_each_once, log)


class TestAnotherProducer(ProducerCase):
    """One producer abandons a message, and another sends it again."""

    def close_and_send_again(self):
        """Write a message, lose its response, abandon it by `close`, and send it with the next producer. Return the
        reader's messages and the log."""
        topic = self.fixture.topic()
        first, second = self.producer(), self.producer()
        first.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        lost = self.fixture.proxy.add(Fault.drop_answer(ApiKey.PRODUCE))
        report = first.publish(topic, [b"1", b"2"], timeout=CALLER_SECONDS)
        self.wait_until(lambda: lost.taken)
        first.close(0)
        self.fixture.proxy.clear()
        again = second.retry(report, timeout=SECONDS)
        self.assertEqual((2, True), (again.delivered_count, again.ok))
        return self.read(topic), self.log(topic)

    @each_once()
    def check_that_a_reader_sees_each_once(self, read):
        self.assertEqual([b"1", b"2", b"warm"], sorted(read.values()))

    def test_the_log_has_the_message_twice_but_a_reader_sees_it_once(self):
        read, log = self.close_and_send_again()
        self.check_that_a_reader_sees_each_once(read)
        self.assertEqual(2, doubled(log))

    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_creates_a_new_id_delivers_the_message_twice(self):
        with a_new_id_on_retry():
            read, _ = self.close_and_send_again()
        self.assertRaises(self.failureException, self.check_that_a_reader_sees_each_once, read)

    # Rule 9
    def test_messages_abandoned_by_a_close_are_reported_as_abandoned(self):
        topic = self.fixture.topic()
        producer = self.producer()
        producer.publish(topic, [b"warm"], timeout=SECONDS).raise_for_undelivered()
        self.fixture.proxy.add(Fault.drop_answer(ApiKey.PRODUCE))
        producer.send(topic, b"1")
        [given_up] = producer.close(CALLER_SECONDS).unknown
        self.assertIsInstance(given_up.error, DeliveryAbandoned)


_BETWEEN_SECONDS = 0.1  # each message is a batch and a request


@periodic("the test waits for time-outs of the client, and shows a limit instead of a guarantee")
class EpochBumpTest(ProducerCase):
    """A gap in the sequence of one partition makes librdkafka bump the epoch, and a batch of another partition whose
    response was lost is written again (librdkafka issue 4953).

    If the first test fails, librdkafka's behaviour has changed: correct the page on guarantees.
    """

    def log_after_a_gap(self, **options):
        """Return the log after the response to a batch of partition 1 is lost and the first of two batches of partition
        0 never arrives."""
        topic = self.fixture.topic(2)
        producer = self.producer(options={"socket.timeout.ms": "2000", **options})
        for partition in (0, 1):
            producer.publish(topic, [Record(b"warm", partition=partition)], timeout=SECONDS).raise_for_undelivered()
        faults = [
            self.fixture.proxy.add(
                Fault.drop_answer(ApiKey.PRODUCE, times=1, where=lambda request: b"answer lost" in request.frame)
            ),
            self.fixture.proxy.add(
                Fault.drop_request(ApiKey.PRODUCE, times=1, where=lambda request: b"request lost" in request.frame)
            ),
        ]
        for value, partition in ((b"answer lost", 1), (b"request lost", 0), (b"next", 0)):
            producer.send(topic, Record(value, partition=partition))
            time.sleep(_BETWEEN_SECONDS)
        self.assertTrue(producer.flush(SECONDS).ok)
        self.assertEqual([1, 1], [fault.taken for fault in faults])
        self.topic = topic
        return self.log(topic, 2)

    def test_a_gap_in_one_partition_duplicates_a_record_of_another_and_a_reader_by_id_sees_it_once(self):
        log = self.log_after_a_gap()
        self.assertEqual(1, doubled(log))
        self.assertEqual([b"answer lost"] * 2, [each.value for each in log if each.partition == 1 and each.offset])
        self.assertEqual([b"answer lost", b"next", b"request lost"], sorted(set(self.read(self.topic, 2).values()))[:3])

    def test_with_one_request_in_flight_there_is_no_gap_and_no_duplicate(self):
        self.assertEqual(0, doubled(self.log_after_a_gap(**{"max.in.flight": "1"})))
