# SPDX-License-Identifier: Apache-2.0
"""JSON Schema: references stay in the registry, errors have no values."""

from __future__ import annotations

import json

from monasca_common.kafka import load_serializer
from monasca_common.kafka.errors import SerializationError
from monasca_common.tests.contracts.schemas import JSON_READING, VALUE
from monasca_common.tests.unit.kafka.serialization.test_registry import MemoryRegistryCase

ROOM = {"title": "Room", "type": "string", "maxLength": 4}


class JsonSchemaTest(MemoryRegistryCase):
    def serializer(self, **options):
        return load_serializer("json-schema", conf=self.conf(**options))

    def registered(self, schema, references=()):
        body = {"schema": json.dumps(schema), "schemaType": "JSON", "references": list(references)}
        status, answer = self.memory.answer("POST", f"/subjects/{self.topic}-json/versions", body)
        self.assertEqual(200, status)
        return b"\0" + answer["id"].to_bytes(4)

    def test_a_reference_is_another_subject_of_the_registry(self):
        self.registered(ROOM)
        reference = {"name": "room.json", "subject": f"{self.topic}-json", "version": 1}
        start = self.registered({"properties": {"room": {"$ref": "room.json"}}}, [reference])

        self.assertEqual({"room": "hall"}, self.serializer().loads(start + b'{"room": "hall"}'))
        error = self.assertRaises(SerializationError, self.serializer().loads, start + b'{"room": "kitchen"}')
        self.assertIn("$.room breaks the rule maxLength", str(error))

    def test_a_relative_reference_belongs_to_the_id_of_its_schema(self):
        self.registered(ROOM)
        reference = {"name": "room.json", "subject": f"{self.topic}-json", "version": 1}
        schema = {"$id": "https://example.org/reading.json", "properties": {"room": {"$ref": "room.json"}}}
        start = self.registered(schema, [reference])

        self.assertEqual({"room": "hall"}, self.serializer().loads(start + b'{"room": "hall"}'))
        self.assertRaises(SerializationError, self.serializer().loads, start + b'{"room": "kitchen"}')

    def test_a_referenced_schema_has_the_anchors_of_its_own_draft(self):
        self.registered({"$schema": JSON_READING["$schema"], "definitions": {"room": {"$id": "#room", **ROOM}}})
        reference = {"name": "rooms.json", "subject": f"{self.topic}-json", "version": 1}
        start = self.registered({"properties": {"room": {"$ref": "rooms.json#room"}}}, [reference])

        self.assertEqual({"room": "hall"}, self.serializer().loads(start + b'{"room": "hall"}'))
        self.assertRaises(SerializationError, self.serializer().loads, start + b'{"room": "kitchen"}')

    def test_no_url_in_a_schema_is_requested(self):
        other = f"{self.memory.url}/subjects"
        start = self.registered({"$schema": f"{other}/meta", "properties": {"room": {"$ref": other}}})

        self.assertRaises(SerializationError, self.serializer().loads, start + b'{"room": "hall"}')
        self.assertEqual([], [each for each in self.memory.requests if each.startswith("GET /subjects")])

    def test_errors_have_no_values(self):
        serializer = self.serializer(schema=JSON_READING)
        for value in ({"room": 17, "celsius": "sesame"}, {"celsius": "sesame"}, "sesame", {**VALUE, "x": float("nan")}):
            error = self.assertRaises(SerializationError, serializer.dumps, value, self.context)
            self.assertNotIn("sesame", f"{error} {error.__context__} {error.__cause__}")

    def test_unique_items_are_checked_in_linear_time(self):
        start = self.registered({"properties": {"a": {"uniqueItems": True}}})
        for items in ([{"b": 1}, {"b": 1.0}], [[1], [1]], ["x", "x"], [{"b": 1, "c": [2]}, {"c": [2.0], "b": 1}]):
            value = start + json.dumps({"a": items}).encode()
            error = self.assertRaises(SerializationError, self.serializer().loads, value)
            self.assertIn("$.a breaks the rule uniqueItems", str(error))
        for items in ([1, True, "1", None], [{"b": 1}, {"b": True}, {"b": "1"}], [], [{"b": 0.5}, {"b": 0}], "xx"):
            value = {"a": items}
            self.assertEqual(value, self.serializer().loads(start + json.dumps(value).encode()))
        many = {"a": [{"b": number} for number in range(20_000)]}  # 200 million comparisons would take minutes
        self.assertEqual(many, self.serializer().loads(start + json.dumps(many).encode()))
        draft = {"$schema": JSON_READING["$schema"]}
        start = self.registered({**draft, "properties": {"a": {"uniqueItems": True}, "next": {"$ref": "#"}}})
        self.assertEqual({"next": many}, self.serializer().loads(start + json.dumps({"next": many}).encode()))

    def test_text_that_is_not_a_schema_is_rejected(self):
        start = self.registered({"type": "record", "name": "Reading", "fields": []})

        error = self.assertRaises(SerializationError, self.serializer().loads, start + b"{}")
        self.assertIn("not a JSON Schema", str(error))
        self.assertRaises(SerializationError, self.serializer().loads, self.value, self.context)  # of Avro
        for schema in (5, None, {"$schema": 5}, {"$schema": []}):
            start = self.registered(schema)
            self.assertRaises(SerializationError, self.serializer().loads, start + b"{}")
