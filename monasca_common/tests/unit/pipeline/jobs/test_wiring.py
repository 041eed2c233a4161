# SPDX-License-Identifier: Apache-2.0
"""What a job publishes is in the books of the audit, beside what it accounts for."""

from types import SimpleNamespace
from unittest import mock

from monasca_common.pipeline.jobs.wiring import open_audit, open_outbox
from monasca_common.tests.unit.audit.audit_case import TOPIC, AuditCase


class WiringTest(AuditCase):
    def published(self, audit):
        stream = SimpleNamespace(
            producer=self.kafka.producer_settings(),
            audit=audit,
            group="spark-aggregate",
            topic="metrics",
            consumer=SimpleNamespace(dead_letter_topic=None),
        )
        settings = mock.Mock(stream=stream, slack_seconds=1)
        with open_audit(stream) as reporter, open_outbox(settings, mock.Mock(), mock.Mock(), reporter) as outbox:
            outbox._producer.publish(TOPIC, [b"x"] * 3).raise_for_undelivered()
        return [(each.tier, each.application, each.counts[0].messages) for each in self.reports()]

    def test_what_the_outbox_publishes_is_reported(self):
        self.assertEqual([("producer", "spark-aggregate", 3)], self.published(self.settings))

    def test_without_an_audit_nothing_is_reported(self):
        self.assertEqual([], self.published(None))
