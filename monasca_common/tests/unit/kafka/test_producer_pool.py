# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools
import math
from unittest import mock

from oslotest import base

from monasca_common.kafka import ClosedError, ConfigurationError, PooledProducer, ProducerPool, Record, producer_pool
from monasca_common.kafka.partitioners import partition_for
from monasca_common.kafka.testing import LoseAnswer, MemoryKafka
from monasca_common.tests.threads import run_together

AT_ONCE, PATIENCE = 0.0, 60.0


class StuckPartitionTest(base.BaseTestCase):
    """Messages without a key go to three partitions in turn, and the first partition acknowledges nothing."""

    def setUp(self):
        super().setUp()
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("metrics", 3)
        self.broker = kafka.broker
        producer = kafka.producer()
        self.addCleanup(producer.close, 0.0)
        producer.publish("metrics", [b"opens everything"] * 3, timeout=PATIENCE)
        self.now = 1000.0
        self.topic = PooledProducer("metrics", producer, lambda: self.now)
        self.age, healthy = 0.0, producer.health
        aged = lambda: dataclasses.replace(healthy(), oldest_unacknowledged_seconds=self.age)  # noqa: E731
        self.patch(producer, "health", aged)
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", partition=0, count=None)
        self.assertEqual(1, self.unknown(b"stuck"))

    def post(self, *records, timeout=PATIENCE):
        """Return the report of a post; ``None`` if it is refused."""
        return self.topic.publish(records, timeout) if self.topic.accepts() else None

    def unknown(self, *records):
        return len(self.post(*records, timeout=AT_ONCE).unknown)

    def after(self, seconds):
        """Set the age of the stuck message."""
        self.now, self.age = 1000.0 + seconds, seconds

    def meet_the_others(self):
        for seconds in (0.8, 0.9):
            self.after(seconds)
            self.assertTrue(self.post(b"to another").ok)

    def test_messages_go_to_the_other_partitions_for_the_whole_outage(self):
        self.meet_the_others()
        for seconds in (1.5, 4.0, 6.0, 9.0):
            self.after(seconds)
            reports = [self.post(b"a", Record(b"b")) for _ in range(4)]
            partitions = {each.partition for report in reports for each in report.delivered}
            self.assertEqual((8, {1, 2}), (sum(report.delivered_count for report in reports), partitions))
        self.assertEqual((True, False), (self.topic.is_old, self.topic.is_stalled))

    def test_messages_with_a_key_keep_their_partition(self):
        keys = {partition_for(key, 3): key for key in (b"%d" % number for number in range(9))}
        self.meet_the_others()
        self.after(6.0)
        self.assertEqual(1, self.unknown(Record(b"a", keys[0])))
        reports = [self.post(Record(b"a", keys[partition])) for partition in (1, 1, 2, 2)]
        self.assertEqual([1, 1, 2, 2], [report.delivered[0].partition for report in reports])
        self.assertTrue(self.post(b"without a key").ok)

    def test_a_repetition_of_a_stuck_message_delays_no_others(self):
        self.meet_the_others()  # the next message goes to the first partition
        self.assertEqual(1, self.unknown(Record(b"keyed", message_id=b"id")))
        self.after(6.0)
        for _ in range(4):
            self.assertEqual(1, self.unknown(Record(b"keyed", message_id=b"id")))
        partitions = [self.post(Record(b"a", message_id=b"%d" % n)).delivered[0].partition for n in range(2)]
        self.assertEqual({1, 2}, set(partitions))

    def test_a_post_that_is_too_large_does_not_mark_its_partition_as_stuck(self):
        self.meet_the_others()
        self.after(6.0)
        for _ in range(4):
            self.assertEqual(1, len(self.post(b"x" * 2_000_000).failed))
        self.assertTrue(self.post(b"a").ok)

    def test_without_a_responding_partition_a_post_probes_one_a_second_after_the_topic_stalls(self):
        self.after(5.5)
        self.assertIsNone(self.post(b"refused"))
        self.assertTrue(self.topic.is_stalled)
        self.after(6.0)
        self.assertTrue(self.post(b"tries").ok)
        self.after(7.0)
        self.assertTrue(self.post(b"after it").ok)
        self.assertFalse(self.topic.is_stalled)

    def test_the_first_post_after_a_long_pause_does_not_wait_for_a_probe(self):
        self.after(60.0)
        self.assertTrue(self.post(b"tries").ok)

    def test_unsuccessful_attempts_are_repeated_at_growing_intervals_with_one_post_each(self):
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", count=None)
        tried = []
        for second in range(100):
            self.after(5.5 + second)
            held = [post for post in (self.post(b"a", timeout=AT_ONCE) for _ in range(3)) if post is not None]
            tried += [(second, len(held))] if held else []
        self.assertEqual([(1, 1), (21, 1), (61, 1)], tried)

    def test_no_post_goes_to_a_stuck_partition_while_others_respond(self):
        self.meet_the_others()
        for seconds in (6.0, 7.0, 60.0):
            self.after(seconds)
            for _ in range(3):
                self.assertTrue(self.post(b"a").ok)

    def test_a_partition_that_becomes_silent_is_not_chosen_again(self):
        self.meet_the_others()
        self.after(6.0)
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", partition=1, count=None)
        self.assertEqual(1, self.unknown(b"it is the first one's turn"))
        self.assertEqual([2] * 4, [self.post(b"a").delivered[0].partition for _ in range(4)])

    def test_a_partition_that_does_not_acknowledge_messages_with_ids_is_not_chosen_again(self):
        self.meet_the_others()
        self.after(6.0)
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", partition=1, count=None)
        self.assertEqual(1, self.unknown(Record(b"keyed", message_id=b"first")))
        reports = [self.post(Record(b"keyed", message_id=b"%d" % n), timeout=1.0) for n in range(4)]
        self.assertEqual([2] * 4, [each.partition for report in reports for each in report.delivered])

    def test_when_no_partition_acknowledges_messages_with_ids_the_topic_stalls(self):
        self.meet_the_others()
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", count=None)
        self.after(5.5)
        ids = itertools.count()
        posts = [self.post(Record(b"keyed", message_id=b"%d" % next(ids)), timeout=AT_ONCE) for _ in range(3)]
        self.assertEqual([1, 1, None], [post and len(post.unknown) for post in posts])
        self.assertTrue(self.topic.is_stalled)

    def test_the_remembered_ids_are_bounded(self):
        self.patch(producer_pool, "_MAX_UNANSWERED_IDS", 2)
        for number in range(5):
            self.assertEqual(1, self.unknown(Record(b"keyed", message_id=b"%d" % number, partition=0)))
            self.assertLessEqual(len(self.topic._unanswered_ids), 2)

    def test_posts_are_refused_when_no_partition_responds(self):
        self.meet_the_others()
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", count=None)
        self.after(5.5)
        self.assertEqual([1, 1], [self.unknown(b"a") for _ in range(2)])
        self.assertIsNone(self.post(b"a"))

    def test_a_partition_that_responds_again_is_chosen_by_the_client(self):
        self.meet_the_others()
        self.after(6.0)
        self.assertTrue(self.post(b"a").ok)
        self.broker.clear_faults()
        self.now, self.age = self.now + 1.0, 0.0
        self.assertEqual({0, 1, 2}, {self.post(b"a").delivered[0].partition for _ in range(3)})


class RaceTest(base.BaseTestCase):
    def test_one_of_many_concurrent_threads_probes(self):
        producer = mock.Mock()
        producer.health.return_value = mock.Mock(finished=False, oldest_unacknowledged_seconds=60.0)
        topic = PooledProducer("metrics", producer, lambda: 1000.0)
        accepted = run_together(lambda _number: topic.accepts(), range(8))
        self.assertEqual([False] * 7 + [True], sorted(accepted))


class ReopeningTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.producer = mock.Mock()
        self.producer.health.return_value = mock.Mock(finished=True, oldest_unacknowledged_seconds=0.0)
        self.pooled = PooledProducer("metrics", self.producer, lambda: self.now)

    def attempts_within(self, seconds):
        """Return the seconds at which the producer was reopened, checked every half second."""
        began, attempts = self.now, []
        while self.now < began + seconds:
            before = self.producer.reopen.call_count
            self.pooled.health()
            if self.producer.reopen.call_count > before:
                attempts.append(self.now - began)
            self.now += 0.5
        return attempts

    def test_the_pauses_grow_up_to_a_minute(self):
        attempts = self.attempts_within(300)
        pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
        self.assertEqual([1, 2, 4, 8, 16, 32, 60, 60, 60], pauses[:9])

    def test_the_back_off_restarts_after_a_time_without_errors(self):
        self.attempts_within(100)
        self.producer.health.return_value.finished = False
        self.assertEqual([], self.attempts_within(300))
        self.producer.health.return_value.finished = True
        self.assertEqual([0, 1, 3], self.attempts_within(5))

    def test_a_request_does_not_receive_the_error_of_opening_a_producer(self):
        for error in (ConfigurationError("no"), ClosedError("closed")):
            self.producer.reopen.side_effect = error
            self.now += 60
            self.pooled.health()
        self.assertEqual(2, self.producer.reopen.call_count)


class PoolTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("a")
        self.kafka.broker.create_topic("b")
        self.opened = []
        self.pool = ProducerPool(self.open_producer)

    def open_producer(self, topic):
        self.opened.append(topic)
        return self.kafka.producer()

    def test_each_topic_has_a_producer_which_is_opened_once(self):
        for topic in ("a", "b", "a"):
            self.assertTrue(self.pool.of(topic).publish([b"x"], PATIENCE).ok)
        self.assertEqual(["a", "b"], self.opened)
        self.assertEqual(["a", "b"], [each.topic for each in self.pool.opened()])
        self.pool.close(AT_ONCE)

    def test_a_close_reports_undelivered_messages_and_prevents_another_opening(self):
        self.pool.of("b")
        self.pool.of("a").publish([b"opens everything"], PATIENCE)
        self.kafka.broker.disconnect()
        for value in (b"x", b"y"):
            self.pool.of("a").producer.send("a", value)
        self.assertEqual([0, 2], [len(report.failed) + len(report.unknown) for report in self.pool.close(AT_ONCE)])
        self.assertRaises(ClosedError, self.pool.of, "c")

    def test_a_pool_without_producers_closes(self):
        self.assertEqual([], self.pool.close(AT_ONCE))
