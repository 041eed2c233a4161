# SPDX-License-Identifier: Apache-2.0
"""One topic with envelopes in JSON and in Avro, and a schema registry that is unavailable at the start."""

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.message import Record
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.models import avro
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.tests.checker import ReportedOutcome
from monasca_common.tests.functional.persister.persister_case import NO_ALARMS, PARTITIONS, SECONDS, PersisterCase


class TestFormats(PersisterCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        settings = SchemaRegistrySettings(url=self.registry.url, auto_register=True)
        self.writer = EnvelopeWriter(settings, avro.METRICS, self.topic)

    def publish_in_avro(self, numbers, *, bad=()):
        numbers = list(numbers)
        values = self.writer.values([self.metric(number) for number in numbers])
        records = [
            Record(value[:9] + b" %d" % number if number in bad else value, partition=number % PARTITIONS)
            for number, value in zip(numbers, values, strict=True)
        ]
        self.producer.publish(self.topic, records, timeout=SECONDS).raise_for_undelivered()
        self.outcomes |= dict.fromkeys(numbers, ReportedOutcome.ACKED)

    def test_an_unavailable_registry_delays_rows_but_rejects_none(self):
        self.publish(range(50))
        self.publish_in_avro(range(50, 100), bad={60})
        self.publish(range(100, 150))
        self.registry.stop()
        persister = self.start(others=f"{NO_ALARMS}\n[schema_registry]\nurl = {self.registry.url}\ntimeout_seconds = 2")
        self.wait_until(
            lambda: persister.worker().get("state") == "waiting for the schema registry", what="the state of the wait"
        )
        self.assertEqual([], self.dead_letters())

        self.registry.start()
        self.wait_until(lambda: len(self.rows()) + len(self.dead_letters()) == 150, what="all rows")
        ((number, reason, _),) = self.dead_letters()
        self.assertEqual(60, number)
        self.assertIn("schema 1", reason)
        self.assert_ends_in_order(persister)
        self.assert_clean()
