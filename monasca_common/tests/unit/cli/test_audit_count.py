# SPDX-License-Identifier: Apache-2.0
"""`audit count` chooses its topics, and again when there are others."""

from oslotest import base

from monasca_common.audit.counter_service import TopicChoice
from monasca_common.audit.settings import AuditSettings
from monasca_common.cli import audit
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.transport.memory import VirtualClock


class TopicChoiceTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock(0)
        self.there = {"metrics": 1, "monasca-audit": 1, "__consumer_offsets": 50}

    def partition_counts(self):
        """It is the administrator itself."""
        return self.there

    def choice(self, *wanted):
        return TopicChoice(self, wanted, AuditSettings(), self.clock)

    def test_all_are_counted_but_those_of_kafka_and_that_of_the_reports(self):
        self.assertEqual(("metrics",), self.choice().choose())

    def test_a_topic_that_is_made_later_is_found_within_a_minute(self):
        choice = self.choice()
        choice.choose()
        self.there["events"] = 1
        self.assertFalse(choice.has_changed())
        self.clock.advance(60)
        self.assertTrue(choice.has_changed())
        self.assertEqual(("events", "metrics"), choice.choose())
        self.clock.advance(60)
        self.assertFalse(choice.has_changed())

    def test_topics_that_were_named_stay(self):
        choice = self.choice("metrics")
        choice.choose()
        self.there["events"] = 1
        self.clock.advance(60)

        self.assertFalse(choice.has_changed())

    def test_a_topic_that_does_not_exist_is_named(self):
        self.assertIn("--topic evnts", str(self.assertRaises(ConfigurationError, self.choice("evnts").choose)))

    def test_no_topic_at_all_is_refused(self):
        self.there = {}
        self.assertRaises(ConfigurationError, self.choice().choose)


class LookBackTest(base.BaseTestCase):
    def test_who_looks_back_farther_than_time_goes_sees_all(self):
        self.assertEqual(0, audit._since_ms(AuditSettings(), 99_999_999_999))
