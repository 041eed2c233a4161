# SPDX-License-Identifier: Apache-2.0
from functools import partial

import fixtures
from oslotest import base

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import RegistryUnavailable, SchemaRefused
from monasca_common.kafka.testing import MemoryRegistry, VirtualClock
from monasca_common.models import avro, event, metric
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.runtime.envelopes import EnvelopeReader, EnvelopeWriter

METRIC = b'{"name":"cpu","dimensions":{"hostname":"h"},"timestamp":5,"value":%d}'
JSON = metric.envelopes([METRIC % value for value in range(3)], "t", "r", 1.5)


class EnvelopesTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        self.clock = VirtualClock()
        client = "monasca_common.kafka.serialization.registry_client.SystemClock"
        self.useFixture(fixtures.MonkeyPatch(client, lambda: self.clock))
        self.settings = partial(SchemaRegistrySettings, url=self.registry.url, timeout_seconds=5.0)
        self.decode = metric.MetricDecoder().decode_all

    def decoded(self, values, reader=None, decode=None):
        """Return the rows, as the persister decodes them."""
        texts, unreadable = (reader or EnvelopeReader(self.settings())).as_json(values)
        decoded = (decode or self.decode)(texts)
        decoded.errors.update(unreadable)
        return decoded

    def written(self, kind=avro.METRICS, envelopes=JSON):
        return EnvelopeWriter(self.settings(auto_register=True), kind, "metrics").values(envelopes)

    def test_both_formats_have_the_same_rows_in_their_order(self):
        values = self.written()
        self.assertEqual({b"\0"}, {value[:1] for value in values})
        mixed = [JSON[0], values[1], JSON[2]]

        self.assertEqual(self.decode(JSON), self.decoded(mixed))

    def test_a_schema_is_requested_once(self):
        reader, values = EnvelopeReader(self.settings()), self.written()
        before = len(self.registry.requests)
        reader.as_json(values)
        reader.as_json(values)
        self.assertEqual(1, len(self.registry.requests) - before)

    def test_a_reader_with_known_schemas_needs_no_registry(self):
        reader, values = EnvelopeReader(self.settings()), self.written()
        reader.as_json(values)
        self.registry.stop()
        self.assertEqual({}, reader.as_json(values)[1])

    def test_values_are_not_rejected_while_the_registry_is_unavailable(self):
        values = self.written()
        self.registry.stop()
        self.assertRaises(RegistryUnavailable, EnvelopeReader(self.settings()).as_json, values)

    def test_an_unreadable_value_is_rejected_with_its_schema_without_its_siblings(self):
        values = self.written()
        broken = [values[0], values[1][:-3], b"\0" * 5, JSON[2], None]
        reader = EnvelopeReader(self.settings(unknown_id_seconds=0.1))

        found = self.eventually(lambda: self.decoded(broken, reader))
        self.assertEqual([0, 3], found.indices)
        self.assertEqual([1, 2, 4], sorted(found.errors))
        self.assertIn("with the schema 1 is not a record of monasca.MetricEnvelope", str(found.errors[1]))
        self.assertIn("has no schema 0", str(found.errors[2]))

    def test_a_value_that_ends_within_its_schema_id_is_rejected_immediately(self):
        reader, before = EnvelopeReader(self.settings()), len(self.registry.requests)
        for length in range(1, 5):
            errors = reader.as_json([b"\0" * length])[1]
            self.assertIn("ends within its schema id", str(errors[0]))
        self.assertEqual(before, len(self.registry.requests))

    def eventually(self, call):
        for _ in range(100):
            try:
                return call()
            except RegistryUnavailable as later:  # until the unknown id has been requested for long enough
                self.clock.advance(later.after)
        raise AssertionError("the value still waits")

    def test_a_schema_that_is_not_of_an_envelope_is_refused(self):
        self.registry.answer("POST", "/subjects/other/versions", {"schema": '"string"'})
        error = self.assertRaises(InvalidEnvelope, EnvelopeReader(self.settings()).text, b"\0\0\0\0\1\2x")
        self.assertIn("schema 1", str(error))
        self.assertIn("monasca.MetricEnvelope", str(error))

    def test_without_a_registry_values_are_unchanged(self):
        values = self.written()
        self.assertEqual((values, {}), EnvelopeReader().as_json(values))
        self.assertEqual([0, 1, 2], sorted(self.decoded(values, EnvelopeReader()).errors))

    def test_a_schema_that_is_not_registered_is_an_error_unless_it_may_be_registered(self):
        writer = EnvelopeWriter(self.settings(), avro.METRICS, "metrics")
        self.assertRaises(SchemaRefused, writer.values, JSON)
        values = self.written()
        self.assertEqual(values, writer.values(JSON))

    def test_other_kinds_are_also_converted(self):
        envelopes = event.envelopes([b'{"event_type":"e","payload":{"a":1},"dimensions":{}}'], "t", "r", 1.5)
        values = self.written(avro.EVENTS, envelopes)
        self.assertEqual(event.decode_all(envelopes), self.decoded(values, decode=event.decode_all))
