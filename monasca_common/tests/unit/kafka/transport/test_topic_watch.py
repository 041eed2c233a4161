# SPDX-License-Identifier: Apache-2.0
import threading
from typing import Any, cast

from oslotest import base

from monasca_common.kafka.errors import TransportError
from monasca_common.kafka.transport.topic_watch import TopicWatch


class Topics:
    """A transport that returns topic ids."""

    def __init__(self, **ids):
        self.ids = ids
        self.failing = False
        self.asked = lambda: None

    def topic_ids(self, topics, timeout):
        self.asked()
        if self.failing:
            raise TransportError("no response")
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}


class TestTopicWatch(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.topics = cast(Any, Topics(metrics="one", logs="two"))
        self.watch = TopicWatch(self.topics, ("metrics", "logs"), 60.0)
        self.watch.check()

    def test_an_unchanged_topic_is_not_a_failure(self):
        self.watch.check()
        self.assertIsNone(self.watch.failure)

    def test_another_id_is_a_failure_that_names_topic_and_ids(self):
        self.topics.ids["logs"] = "three"
        self.watch.check()
        failure = self.watch.failure
        assert failure is not None
        self.assertEqual("logs", failure.topic)
        self.assertIn("two is now three", str(failure))

    def test_a_temporarily_missing_topic_is_recognized(self):
        del self.topics.ids["metrics"]
        self.watch.check()
        self.assertIsNone(self.watch.failure)
        self.topics.ids["metrics"] = "four"
        self.watch.check()
        self.assertIn("'metrics'", str(self.watch.failure))

    def test_a_watch_with_a_callback_continues_with_the_new_id(self):
        reported = []
        watch = TopicWatch(self.topics, ("metrics", "logs"), 60.0, on_recreated=reported.append)
        watch.check()
        self.topics.ids["logs"] = "three"
        watch.check()
        watch.check()
        self.topics.ids["logs"] = "four"
        watch.check()
        self.assertEqual(
            [("logs", "two", "three"), ("logs", "three", "four")], [(f.topic, f.old_id, f.new_id) for f in reported]
        )
        self.assertIsNone(watch.failure)

    def test_an_added_topic_is_watched_with_its_current_id(self):
        asked = threading.Event()
        self.topics.asked = asked.set
        watch = TopicWatch(self.topics, (), 3600.0)
        self.addCleanup(watch.stop)
        watch.add("metrics")
        self.assertTrue(asked.wait(50))
        asked.clear()
        watch.add("logs")
        self.assertTrue(asked.wait(50))
        asked.clear()
        watch.add("logs")
        self.assertFalse(asked.is_set())

    def test_an_interval_of_zero_sends_no_requests(self):
        self.topics.asked = self.fail
        TopicWatch(self.topics, (), 0).add("metrics")

    def test_no_response_is_not_a_failure(self):
        self.topics.failing = True
        self.watch.check()
        self.topics.failing = False
        self.watch.check()
        self.assertIsNone(self.watch.failure)

    def test_an_error_of_the_system_does_not_end_the_watch(self):
        def no_thread():
            raise RuntimeError("can't start new thread")

        self.topics.asked = no_thread
        self.watch.check()
        self.topics.asked = lambda: None
        self.topics.ids["logs"] = "three"
        self.watch.check()
        self.assertIn("two is now three", str(self.watch.failure))
