# SPDX-License-Identifier: Apache-2.0
"""The contract of serializers with a schema registry, in memory or published."""

import json
import uuid
from pathlib import Path

import fixtures
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField
from confluent_kafka.serialization import SerializationContext as ConfluentContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from oslo_config import cfg
from oslo_config import fixture as config_fixture
from oslotest import base

from monasca_common.kafka import SerializationContext, load_serializer
from monasca_common.kafka.config.schema_registry import REGISTRY_GROUP
from monasca_common.kafka.errors import SchemaRefused, SerializationError

READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "example",
    "fields": [{"name": "room", "type": "string"}, {"name": "celsius", "type": "double"}],
}
WITH_UNIT = {**READING, "fields": [*READING["fields"], {"name": "unit", "type": "string", "default": "C"}]}
RENAMED = {**READING, "fields": [{"name": "place", "type": "string"}]}
JSON_READING = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Reading",
    "type": "object",
    "properties": {"room": {"type": "string"}, "celsius": {"type": "number"}},
    "required": ["room"],
}
PROTO_READING = 'syntax = "proto3";\npackage example;\n\nmessage Other {\n}\nmessage Reading {\n  string room = 1;\n}\n'
VALUE = {"room": "hall", "celsius": 21.5}


def reading_class():
    """Return the classes Reading and Other, as protoc generates them."""
    file = descriptor_pb2.FileDescriptorProto(name="reading.proto", package="example", syntax="proto3")
    file.message_type.add(name="Other")
    file.message_type.add(name="Reading").field.add(name="room", number=1, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("example.Reading", "example.Other")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


class RegistryCase(base.BaseTestCase):
    """Opens serializers of the registry at ``url``. Topic names are new in each test."""

    url = ""

    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.topic = f"readings-{uuid.uuid4().hex[:8]}"
        self.context = SerializationContext(self.topic)

    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def conf(self, **options):
        """Return a configuration; ``schema`` and ``reader`` are the topic's schemas."""
        options = {"url": self.url, "subject_name_strategy": "topic", "auto_register": True} | options
        for name, option in (("schema", "schema_files"), ("reader", "reader_schema_files")):
            if (content := options.pop(name, None)) is not None:
                options[option] = [f"{self.topic}={self.file(name, content)}"]
        conf = self.useFixture(config_fixture.Config(cfg.ConfigOpts())).conf
        conf([], default_config_files=[])
        REGISTRY_GROUP.register(conf)
        for name, value in options.items():
            conf.set_override(name, value, group="schema_registry")
        return conf

    def avro(self, **options):
        return load_serializer("avro", conf=self.conf(**options))


class SchemaContract:
    """Tests of the features that every registry supports."""

    def check_backward(self, serializer, subject):
        """Set the compatibility level of a subject, which is BACKWARD by default only in some registries."""
        serializer.registry.ask(lambda client: client.set_compatibility(subject, "BACKWARD"))

    def test_an_avro_value_is_read_with_its_writer_schema(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)

        self.assertEqual(0, value[0])
        self.assertEqual(VALUE, self.avro().loads(value, self.context))

    def test_a_reader_schema_adds_the_defaults_of_new_fields(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)

        self.assertEqual({**VALUE, "unit": "C"}, self.avro(reader=WITH_UNIT).loads(value, self.context))

    def test_values_of_two_versions_are_read_from_one_topic(self):
        old = self.avro(schema=READING).dumps(VALUE, self.context)
        new = self.avro(schema=WITH_UNIT).dumps({**VALUE, "unit": "F"}, self.context)

        reader = self.avro()
        self.assertEqual([VALUE, {**VALUE, "unit": "F"}], [reader.loads(each, self.context) for each in (old, new)])

    def test_the_latest_schema_of_the_subject_is_used_without_a_file(self):
        self.avro(schema=READING).dumps(VALUE, self.context)

        value = self.avro(auto_register=False).dumps(VALUE, self.context)
        self.assertEqual(VALUE, self.avro().loads(value, self.context))

    def test_a_schema_that_is_not_registered_is_refused_without_auto_register(self):
        error = self.assertRaises(
            SchemaRefused, self.avro(schema=READING, auto_register=False).dumps, VALUE, self.context
        )
        self.assertIn(error.code, (40401, 40403))

    def test_a_registered_schema_is_found_without_auto_register(self):
        first = self.avro(schema=READING).dumps(VALUE, self.context)

        self.assertEqual(first, self.avro(schema=READING, auto_register=False).dumps(VALUE, self.context))

    def test_an_incompatible_schema_is_refused(self):
        serializer = self.avro(schema=READING)
        serializer.dumps(VALUE, self.context)
        self.check_backward(serializer, f"{self.topic}-value")

        error = self.assertRaises(SchemaRefused, self.avro(schema=RENAMED).dumps, {"place": "hall"}, self.context)
        self.assertEqual(409, error.code)

    def test_compatibility_is_checked_before_a_registration(self):
        serializer = self.avro(schema=READING)
        serializer.dumps(VALUE, self.context)
        subject = f"{self.topic}-value"
        self.check_backward(serializer, subject)

        for schema, compatible in ((WITH_UNIT, True), (RENAMED, False)):
            asked = Schema(json.dumps(schema), "AVRO")
            answer = serializer.registry.ask(lambda client, asked=asked: client.test_compatibility(subject, asked))
            self.assertEqual(compatible, answer)

    def test_each_strategy_has_its_subject(self):
        for strategy, subject in (
            ("topic", f"{self.topic}-value"),
            ("record", "example.Reading"),
            ("topic-record", f"{self.topic}-example.Reading"),
        ):
            serializer = self.avro(schema=READING, subject_name_strategy=strategy)
            serializer.dumps(VALUE, self.context)
            self.assertIn(subject, serializer.registry.ask(lambda client: client.get_subjects()))

    def test_a_value_is_read_that_refers_to_another_subject(self):
        serializer = self.avro(schema=READING)
        serializer.dumps(VALUE, self.context)
        pair = {"type": "record", "name": "Pair", "fields": [{"name": "first", "type": "example.Reading"}]}
        references = [SchemaReference("example.Reading", f"{self.topic}-value", 1)]
        serializer.registry.ask(
            lambda client: client.register_schema(
                f"{self.topic}-pair-value", Schema(json.dumps(pair), "AVRO", references)
            )
        )

        context = SerializationContext(f"{self.topic}-pair")
        value = self.avro(auto_register=False).dumps({"first": VALUE}, context)
        self.assertEqual({"first": VALUE}, self.avro().loads(value, context))

    def test_a_json_value_is_checked_with_its_schema(self):
        serializer = load_serializer("json-schema", conf=self.conf(schema=JSON_READING))
        value = serializer.dumps(VALUE, self.context)

        reader = load_serializer("json-schema", conf=self.conf())
        self.assertEqual(VALUE, reader.loads(value, self.context))
        error = self.assertRaises(SerializationError, reader.loads, value[:5] + b'{"room":"x","celsius":"y"}')
        self.assertIn("$.celsius breaks the rule type", str(error))

    def test_a_protobuf_value_is_read_by_its_generated_class(self):
        reading, other = reading_class()
        serializer = load_serializer("protobuf", conf=self.conf(schema=PROTO_READING), type=reading)
        value = serializer.dumps(reading(room="hall"), self.context)

        self.assertEqual(reading(room="hall"), serializer.loads(value, self.context))
        self.assertRaises(
            SerializationError, load_serializer("protobuf", conf=self.conf(), type=other).loads, value, self.context
        )

    def test_a_value_of_confluents_serializer_is_read(self):
        client = SchemaRegistryClient({"url": self.url})
        self.addCleanup(client.close)
        theirs = AvroSerializer(client, json.dumps(READING))
        value = theirs(VALUE, ConfluentContext(self.topic, MessageField.VALUE))

        self.assertEqual(VALUE, self.avro().loads(value, self.context))
        self.assertEqual(value, self.avro(schema=READING, auto_register=False).dumps(VALUE, self.context))
