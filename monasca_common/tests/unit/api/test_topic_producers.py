# SPDX-License-Identifier: Apache-2.0
import dataclasses
import math

from oslotest import base

from monasca_common.api.settings import ApiSettings
from monasca_common.api.topic_producers import TopicProducer
from monasca_common.kafka import Record
from monasca_common.kafka.testing import LoseAnswer, MemoryKafka

SETTINGS = ApiSettings(stalled_after_seconds=5.0, publish_timeout_seconds=10.0, max_in_flight=4)
AT_ONCE, PATIENCE = 0.0, 60.0


class Topic(TopicProducer):
    """Its oldest message is as old as the test says."""

    age = 0.0

    def health(self):
        return dataclasses.replace(super().health(), oldest_unacknowledged_seconds=self.age)


class StuckPartitionTest(base.BaseTestCase):
    """Of three partitions, which messages without a key take in turn, the first acknowledges nothing."""

    def setUp(self):
        super().setUp()
        kafka = self.useFixture(MemoryKafka())
        kafka.broker.create_topic("metrics", 3)
        self.broker = kafka.broker
        producer = kafka.producer()
        self.addCleanup(producer.close, 0.0)
        producer.publish("metrics", [b"opens everything"] * 3, timeout=PATIENCE)
        self.now = 1000.0
        self.topic = Topic("metrics", producer, SETTINGS, monotonic=lambda: self.now)
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", partition=0, count=None)
        self.assertEqual(1, self.unknown(b"stuck"))

    def post(self, *records, timeout=PATIENCE):
        """The report of a post; ``None`` if it is refused."""
        if self.topic.enter() is not None:
            return None
        try:
            return self.topic.publish(records, timeout)
        finally:
            self.topic.leave()

    def unknown(self, *records):
        return len(self.post(*records, timeout=AT_ONCE).unknown)

    def after(self, seconds):
        """So long after the message that is stuck."""
        self.now, self.topic.age = 1000.0 + seconds, seconds

    def meet_the_others(self):
        for seconds in (0.8, 0.9):
            self.after(seconds)
            self.assertTrue(self.post(b"to another").ok)

    def test_posts_go_to_the_others_however_long_it_lasts(self):
        self.meet_the_others()
        for seconds in (1.5, 4.0, 6.0, 9.0):
            self.after(seconds)
            reports = [self.post(b"a", Record(b"b")) for _ in range(4)]
            partitions = {each.partition for report in reports for each in report.delivered}
            self.assertEqual((8, {1, 2}), (sum(report.delivered_count for report in reports), partitions))
        self.assertEqual((True, False), (self.topic.is_old(self.topic.health()), self.stalled()))

    def test_a_repeat_of_what_is_stuck_waits_alone(self):
        self.meet_the_others()  # and the next turn is the first partition's
        self.assertEqual(1, self.unknown(Record(b"keyed", message_id=b"id")))
        self.after(6.0)
        for _ in range(4):
            self.assertEqual(1, self.unknown(Record(b"keyed", message_id=b"id")))
        partitions = [self.post(Record(b"a", message_id=b"%d" % n)).delivered[0].partition for n in range(2)]
        self.assertEqual({1, 2}, set(partitions))

    def test_a_post_that_is_too_large_says_nothing_of_its_partition(self):
        self.meet_the_others()
        self.after(6.0)
        for _ in range(4):
            self.assertEqual(1, len(self.post(b"x" * 2_000_000).failed))
        self.assertTrue(self.post(b"a").ok)

    def test_where_none_is_known_to_answer_a_post_now_and_then_finds_it(self):
        self.after(6.0)
        self.assertIsNone(self.post(b"refused"))
        self.assertTrue(self.stalled())
        self.after(6.0 + 2 * SETTINGS.publish_timeout_seconds)
        self.assertTrue(self.post(b"tries").ok)
        self.after(self.topic.age + 1.0)
        self.assertTrue(self.post(b"after it").ok)
        self.assertFalse(self.stalled())

    def test_one_that_becomes_silent_is_chosen_no_more(self):
        self.meet_the_others()
        self.after(6.0)
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", partition=1, count=None)
        self.assertEqual(1, self.unknown(b"it is the first one's turn"))
        self.assertEqual([2] * 4, [self.post(b"a").delivered[0].partition for _ in range(4)])

    def test_when_all_are_silent_posts_are_refused(self):
        self.meet_the_others()
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", count=None)
        self.after(6.0)
        self.assertEqual([1, 1], [self.unknown(b"a") for _ in range(2)])
        self.assertIsNone(self.post(b"a"))

    def test_once_it_answers_the_client_chooses_again(self):
        self.meet_the_others()
        self.after(6.0)
        self.assertTrue(self.post(b"a").ok)
        self.broker.clear_faults()
        self.now, self.topic.age = self.now + 1.0, 0.0
        self.assertEqual({0, 1, 2}, {self.post(b"a").delivered[0].partition for _ in range(3)})

    def stalled(self):
        return self.topic.is_stalled(self.topic.health())
