# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools
import math

from oslotest import base

from monasca_common.api.limits import places_of
from monasca_common.api.partitions import AnsweringPartitions
from monasca_common.api.settings import ApiSettings
from monasca_common.api.topic_producers import TopicPlaces, TopicProducer
from monasca_common.kafka import Record
from monasca_common.kafka.testing import LoseAnswer, MemoryKafka

SETTINGS = ApiSettings(publish_timeout_seconds=10.0, max_in_flight=4)
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
        self.topic = Topic("metrics", producer, SETTINGS, TopicPlaces(places_of(SETTINGS)), monotonic=lambda: self.now)
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

    def test_where_none_is_known_to_answer_a_post_finds_it_a_second_after_the_topic_stalls(self):
        self.after(5.5)
        self.assertIsNone(self.post(b"refused"))
        self.assertTrue(self.stalled())
        self.after(6.0)
        self.assertTrue(self.post(b"tries").ok)
        self.after(7.0)
        self.assertTrue(self.post(b"after it").ok)
        self.assertFalse(self.stalled())

    def test_the_first_post_for_long_need_not_wait_for_a_try(self):
        self.after(60.0)
        self.assertTrue(self.post(b"tries").ok)

    def test_tries_that_find_nothing_are_ever_rarer_and_each_holds_one_post(self):
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", count=None)
        tried = []
        for second in range(100):
            self.after(5.5 + second)
            held = [post for post in (self.post(b"a", timeout=AT_ONCE) for _ in range(3)) if post is not None]
            tried += [(second, len(held))] if held else []
        self.assertEqual([(1, 1), (21, 1), (61, 1)], tried)

    def test_while_others_answer_a_post_is_risked_only_now_and_then(self):
        self.meet_the_others()
        for seconds in (6.0, 7.0, 19.0):
            self.after(seconds)
            for _ in range(3):
                self.assertTrue(self.post(b"a").ok)

    def test_one_that_becomes_silent_is_chosen_no_more(self):
        self.meet_the_others()
        self.after(6.0)
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", partition=1, count=None)
        self.assertEqual(1, self.unknown(b"it is the first one's turn"))
        self.assertEqual([2] * 4, [self.post(b"a").delivered[0].partition for _ in range(4)])

    def test_when_all_are_silent_posts_are_refused(self):
        self.meet_the_others()
        self.broker.inject("produce", LoseAnswer(math.inf), topic="metrics", count=None)
        self.after(5.5)
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


class TestTopicPlaces(base.BaseTestCase):
    """``max_in_flight`` is 4, and there are three topics: each has one place of its own."""

    def setUp(self):
        super().setUp()
        self.places = TopicPlaces(places_of(SETTINGS))

    def taken(self, topic):
        """How many posts of the topic get a place."""
        return sum(self.places.take(topic) for _ in range(10))

    def test_however_many_topics_are_stuck_another_has_places(self):
        for stuck in itertools.permutations(("metrics", "log", "monevents")):
            self.places = TopicPlaces(places_of(SETTINGS))
            self.assertEqual([4, 1, 1], [self.taken(topic) for topic in stuck])

    def test_what_is_given_back_is_common_again(self):
        self.assertEqual(4, self.taken("log"))
        for _ in range(4):
            self.places.give_back("log")
        self.assertEqual([4, 1], [self.taken("metrics"), self.taken("log")])
        self.places.give_back("metrics")
        self.assertEqual([1, 0], [self.taken("log"), self.taken("metrics")])


class Racing(float):
    """A time at which another thread comes between a look at it and what is done next, once."""

    between = None

    def __lt__(self, other):
        before = float.__lt__(self, other)
        if self.between is not None:
            between, self.between = self.between, None
            between()
        return before


class RaceTest(base.BaseTestCase):
    def test_of_two_posts_at_a_time_one_tries(self):
        partitions = AnsweringPartitions(stalled_after_seconds=5.0, try_after_seconds=20.0)
        partitions.look(60.0, 1000.0)
        other = []
        now = Racing(1000.0)
        now.between = lambda: other.append(partitions.tries(1000.0))
        self.assertEqual((False, [True]), (partitions.tries(now), other))
