# SPDX-License-Identifier: Apache-2.0
"""A processor whose serializer needs a schema registry."""

from __future__ import annotations

from monasca_common.kafka.clock import SystemClock
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.runtime.member_health import MemberHealth, MemberState, MemberStatus
from monasca_common.tests.contracts.schemas import READING, VALUE, RegistryCase
from monasca_common.tests.unit.kafka.processor.processor_case import ProcessorCase


class SchemaRegistryTest(RegistryCase, ProcessorCase):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryRegistry())
        self.url = self.memory.url
        self.value = self.avro(schema=READING).dumps(VALUE, self.context)
        self.serializer = self.avro(mixed_topics=["in"])
        self.serializer.registry.clock = self.clock
        self.seen = []

    def handle(self, part):
        self.seen += part.values

    # Rule 17
    def test_nothing_is_dead_lettered_while_the_registry_is_unavailable(self):
        health = MemberHealth(MemberStatus("readings"), SystemClock())
        health.begin()
        self.memory.stop()
        self.fill(self.value, b'{"room": "attic"}')
        running = self.start(self.handle, serializer=self.serializer, hooks=[health])
        self.until(lambda: running.processor.ignored_errors["RegistryUnavailable"] > 5)
        status = health.report(None)
        self.assertEqual(MemberState.WAITING_FOR_REGISTRY, status.state)
        self.assertIn(f"schema registry {self.url} is unavailable", status.reason)
        self.assertEqual(([], 0), (self.seen, self.committed()))

        self.memory.start()
        self.until(lambda: self.committed() == 2)
        self.assertEqual([VALUE, {"room": "attic"}], self.seen)
        self.assertEqual([], self.values("in.dlq"))
        self.assertEqual(MemberState.RUNNING, health.report(None).state)

    def test_a_message_that_cannot_be_decoded_becomes_a_dead_letter_with_its_schema(self):
        self.fill(self.value, self.value[:-1], b"\0\0\0\0\x63x", b"neither", self.value)
        self.start(self.handle, serializer=self.serializer)
        self.until(lambda: self.committed() == 5)
        self.assertEqual([VALUE, VALUE], self.seen)
        reasons = [dict(record.headers)["dead-letter-error-text"].decode() for record in self.broker.records("in.dlq")]
        self.assertEqual(3, len(reasons))
        self.assertIn("not a value of the Avro schema 1: EOFError", reasons[0])
        self.assertIn("no schema 99", reasons[1])
        self.assertIn("not JSON", reasons[2])
