# SPDX-License-Identifier: Apache-2.0
"""The audit counts the messages that a job publishes, in addition to the offsets that it accounts for."""

from types import SimpleNamespace
from unittest import mock

from monasca_common.pipeline.aggregate.job import open_period_publisher
from monasca_common.pipeline.jobs.resources import open_audit
from monasca_common.tests.unit.audit.audit_case import TOPIC, AuditCase


class PeriodPublisherAuditTest(AuditCase):
    def published(self, audit):
        stream = SimpleNamespace(
            producer=self.kafka.producer_settings(),
            audit=audit,
            group="spark-aggregate",
            topic="metrics",
            consumer=SimpleNamespace(dead_letter_topic=None),
        )
        settings = mock.Mock(stream=stream, slack_seconds=1)
        store, topic = mock.Mock(), mock.Mock()
        with open_audit(stream) as reporter, open_period_publisher(settings, store, topic, reporter) as publisher:
            publisher._producer.publish(TOPIC, [b"x"] * 3).raise_for_undelivered()
        return [(each.tier, each.application, each.counts[0].messages) for each in self.reports()]

    def test_published_periods_are_reported_to_the_audit(self):
        self.assertEqual([("producer", "spark-aggregate", 3)], self.published(self.settings))

    def test_without_an_audit_nothing_is_reported(self):
        self.assertEqual([], self.published(None))
