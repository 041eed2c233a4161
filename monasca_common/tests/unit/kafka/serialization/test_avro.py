# SPDX-License-Identifier: Apache-2.0
"""Avro: hostile values and schemas, errors without values, mixed topics."""

from __future__ import annotations

import decimal
import json
from unittest import mock

from monasca_common.kafka import SerializationContext
from monasca_common.kafka.errors import ConfigurationError, MisuseError, SchemaRefused, SerializationError
from monasca_common.tests.contracts.schemas import READING, VALUE, WITH_UNIT
from monasca_common.tests.unit.kafka.serialization.test_registry import MemoryRegistryCase

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


class AvroCase(MemoryRegistryCase):
    def refused(self, value, **options):
        error = self.assertRaises(SerializationError, self.avro(**options).loads, value, self.context)
        return str(error)

    def written(self, schema, payload):
        """Register a schema for another topic; return a value of it."""
        self.memory.answer("POST", "/subjects/other-value/versions", {"schema": json.dumps(schema)})
        return b"\0\0\0\0\x02" + payload


class HostileTest(AvroCase):
    def test_a_deeply_nested_value_is_rejected(self):
        value = self.written(NODE, b"\x02" * 100_000 + b"\0")

        self.assertIn("schema 2: RecursionError", self.refused(value))
        self.assertEqual({"next": {"next": None}}, self.avro().loads(value[:5] + b"\x02\0", self.context))

    def test_a_short_value_cannot_have_billions_of_items(self):
        empty = {"type": "record", "name": "Empty", "fields": [{"name": "a", "type": "null"}]}
        for items in ("null", empty, {"type": "fixed", "name": "F", "size": 0}):
            self.memory.clear()
            self.memory.answer("POST", "/subjects/first-value/versions", {"schema": '"int"'})
            value = self.written({"type": "array", "items": items}, b"\xfe" * 4 + b"\x0f\0")
            self.assertIn("items of zero bytes", self.refused(value))

    def test_a_field_that_the_reader_schema_does_not_have_is_checked(self):
        fields = [*READING["fields"], {"name": "more", "type": {"type": "array", "items": "double"}}]
        value = self.written({**READING, "fields": fields}, self.value[5:] + b"\xfe" * 3 + b"\x07\0")

        self.assertIn("schema 2: EOFError", self.refused(value, reader=READING))

    def test_every_truncated_or_extended_value_is_rejected_with_its_schema(self):
        for length in range(5, len(self.value)):
            self.assertIn("Avro schema 1: ", self.refused(self.value[:length]))
        self.assertIn("Avro schema 1: 1 bytes remain", self.refused(self.value + b"x"))
        for length in range(1, 5):
            self.assertIn("ends within its schema id", self.refused(self.value[:length]))
        self.assertIn("no schema id", self.refused(b""))

    def test_a_schema_of_another_format_is_rejected(self):
        body = {"schema": "message Reading {}", "schemaType": "PROTOBUF"}
        self.memory.answer("POST", "/subjects/other-value/versions", body)

        self.assertIn("schema 2 is PROTOBUF, not AVRO", self.refused(b"\0\0\0\0\x02x"))

    def test_types_that_refer_to_each_other_in_many_ways_are_inspected_once(self):
        schema = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}
        for number in range(1, 40):
            fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{number - 1}"}]
            schema = {"type": "record", "name": f"R{number}", "fields": fields}

        self.assertIn("schema 2: ", self.refused(self.written(schema, b"")))

    def test_nested_records_without_bytes_are_refused(self):
        schema = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "null"}]}
        self.assertEqual({"a": None}, self.avro().loads(self.written(schema, b""), self.context))
        self.memory.clear()
        self.memory.answer("POST", "/subjects/first-value/versions", {"schema": '"int"'})
        for number in range(1, 40):
            fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{number - 1}"}]
            schema = {"type": "record", "name": f"R{number}", "fields": fields}

        self.assertIn("records without bytes", self.refused(self.written(schema, b"")))

    def test_a_decimal_with_more_digits_than_its_schema_allows_is_refused(self):
        decimals = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
        fields = [{"name": "a", "type": decimals}, {"name": "next", "type": ["null", "R"]}]
        for schema, end in ((decimals, b""), ({"type": "record", "name": "R", "fields": fields}, b"\0")):
            self.memory.clear()
            self.memory.answer("POST", "/subjects/first-value/versions", {"schema": '"int"'})
            start = self.written(schema, b"")
            read = self.avro().loads(start + b"\4" + (9999).to_bytes(2, signed=True) + end, self.context)
            self.assertEqual(decimal.Decimal("99.99"), read["a"] if end else read)
            for number in (b"\6" + (10_000).to_bytes(3), b"\x80\x89\x7a" + b"\x7f" * 1_000_000):
                self.assertIn("ValueError", self.refused(start + number + end))

    def test_a_decimal_may_have_leading_zeros_of_any_length(self):
        decimals = {"type": "fixed", "name": "F", "size": 500, "logicalType": "decimal", "precision": 4, "scale": 2}
        value = self.written(decimals, (-99).to_bytes(500, signed=True))

        self.assertEqual(decimal.Decimal("-0.99"), self.avro().loads(value, self.context))

    def test_the_precision_of_a_schema_does_not_allow_a_decimal_of_any_length(self):
        schema = {"type": "bytes", "logicalType": "decimal", "precision": 1_000_000_000, "scale": 0}
        self.assertIn("ValueError", self.refused(self.written(schema, b"\x80\x89\x7a" + b"\x7f" * 1_000_000)))


class ReferenceTest(AvroCase):
    def test_a_schema_outside_of_a_record_can_consist_of_references(self):
        self.avro(schema=WITH_UNIT).dumps({**VALUE, "unit": "C"}, self.context)
        reference = {"name": "example.Reading", "subject": f"{self.topic}-value", "version": 2}
        for number, (schema, value) in enumerate(
            (
                (["null", "example.Reading"], {**VALUE, "unit": "F"}),
                ("example.Reading", {**VALUE, "unit": "F"}),
                ({"type": "array", "items": "example.Reading"}, [{**VALUE, "unit": "F"}]),
                ({"type": "map", "values": ["example.Reading", "int"]}, {"a": {**VALUE, "unit": "F"}, "b": 1}),
            )
        ):
            context = SerializationContext(f"{self.topic}-{number}")
            body = {"schema": json.dumps(schema), "references": [reference]}
            self.memory.answer("POST", f"/subjects/{context.topic}-value/versions", body)
            written = self.avro(auto_register=False).dumps(value, context)
            self.assertEqual(value, self.avro().loads(written, context))

    def referring(self, version):
        """Register a schema that refers to a version of the topic's subject; return a value of it."""
        reference = {"name": "example.Reading", "subject": f"{self.topic}-value", "version": version}
        body = {"schema": '"example.Reading"', "references": [reference]}
        self.memory.answer("POST", "/subjects/other-value/versions", body)
        return b"\0\0\0\0\x02" + self.value[5:]

    def test_the_error_of_a_missing_reference_names_both_schemas(self):
        value = self.referring(version=7)
        for error in (self.unavailable(self.avro(), value), self.rejected(self.avro(), value)[1]):
            self.assertIn("schema 2, or", str(error))
            self.assertIn(f"version 7 of {self.topic}-value: Version 7 not found. (40402)", str(error))

    def test_missing_references_do_not_add_up_to_a_long_wait(self):
        value, serializer = self.referring(version=7), self.avro()
        self.rejected(serializer, b"\0\0\0\0\x63")
        waited, _ = self.rejected(serializer, value)
        self.assertEqual(0, waited)

    def test_a_proxy_that_returns_no_schema_for_a_reference_is_unavailable(self):
        value, serializer, answer = self.referring(version=1), self.avro(), self.memory.answer

        def proxied(method, path, body):
            return (200, {}) if "/versions/" in path else answer(method, path, body)

        with mock.patch.object(self.memory, "answer", proxied):
            self.unavailable(serializer, value)
        self.clock.advance(60)
        self.assertEqual(VALUE, serializer.loads(value, self.context))


class ErrorsTest(AvroCase):
    def test_an_error_of_a_writer_names_fields_and_no_value(self):
        serializer = self.avro(schema=READING)
        for value in ({**VALUE, "celsius": "sesame"}, {"room": "sesame"}, {**VALUE, "sesame": 1}, "sesame", None):
            error = self.assertRaises(SerializationError, serializer.dumps, value, self.context)
            self.assertIsNone(error.__context__)
            self.assertNotIn("sesame", str(error))
            if isinstance(value, dict) and "sesame" not in value:
                self.assertIn("example.Reading.celsius", str(error))

    def test_a_file_that_is_not_avro_is_refused(self):
        for content in ("{", '{"type": "nothing"}', "[]", '"nothing"', "17"):
            self.assertRaises((ConfigurationError, SchemaRefused), self.avro(schema=content).dumps, 1, self.context)

    def test_a_value_is_not_written_without_its_topic(self):
        self.assertRaises(MisuseError, self.avro(schema=READING).dumps, VALUE)

    def test_a_record_has_its_content_type(self):
        record = self.avro(schema=READING).record(self.topic, VALUE, key=b"hall")

        self.assertEqual((self.value, (("content-type", b"application/avro"),)), (record.value, record.headers))


class MixedTest(AvroCase):
    def test_values_without_a_schema_id_are_json_in_a_mixed_topic(self):
        serializer = self.avro(mixed_topics=[self.topic])

        self.assertEqual(VALUE, serializer.loads(json.dumps(VALUE).encode(), self.context))
        self.assertEqual(VALUE, serializer.loads(self.value, self.context))
        self.assertRaises(SerializationError, serializer.loads, b"no json", self.context)

    def test_mixed_values_are_rejected_in_another_topic(self):
        serializer = self.avro(mixed_topics=[self.topic])

        self.assertIn("mixed_topics", self.refused(b"{}"))
        self.assertRaises(SerializationError, serializer.loads, b"{}", SerializationContext("other"))
        self.assertRaises(SerializationError, serializer.loads, b"{}")

    def test_a_key_has_its_own_schema(self):
        path = self.file("key.avsc", '"string"')
        serializer = self.avro(schema_files=[f"{self.topic}:key={path}"])
        context = SerializationContext(self.topic, "key")

        self.assertEqual("hall", self.avro().loads(serializer.dumps("hall", context), context))
        self.assertIn(f"{self.topic}-key", self.memory.answer("GET", "/subjects", {})[1])
