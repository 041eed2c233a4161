# SPDX-License-Identifier: Apache-2.0
"""The main guarantee: responses are lost or late, callers retry, and every message is read once. With each guarantee
removed, the same check must fail.
"""

import time

from monasca_common.kafka.errors import DeliveryAbandoned, MessageTooLarge
from monasca_common.kafka.message import Record
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.kafka import mutants
from monasca_common.tests.functional.kafka.lost_answers_case import (
    CALLER_SECONDS,
    LargeNeighboursCase,
    LostAnswersCase,
)
from monasca_common.tests.functional.kafka.producer_case import SECONDS, ProducerCase, doubled
from monasca_common.tests.kafka_proxy import ApiKey, Fault
from monasca_common.tests.periodic import periodic

TRIES = 5  # attempts until a mutant breaks the guarantee


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
        with mutants.publishes_again():
            aftermath = self.lose_answers()
        self.assertRaises(self.failureException, self.check_that_a_reader_sees_each_once, aftermath)

    # Rule 4
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_that_produces_queued_messages_again_duplicates_records_but_not_messages_read_by_id(self):
        # Responses are not dropped: until the client detects a dropped response, this mutant writes more than the five
        # batches that a broker remembers, and the resulting out-of-order sequence is fatal for the client.
        with mutants.produces_again_while_queued():
            self.check_that_the_log_is_doubled_but_not_what_is_read(dropped=0)

    # Rule 1
    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_with_a_message_timeout_duplicates_records_but_not_messages_read_by_id(self):
        with mutants.short_message_timeout():
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
        with mutants.no_size_check():
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
        with mutants.a_new_id_on_retry():
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
