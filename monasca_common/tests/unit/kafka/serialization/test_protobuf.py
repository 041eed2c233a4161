# SPDX-License-Identifier: Apache-2.0
"""Protobuf: the position of a message type in its file, and hostile values."""

from __future__ import annotations

import json
import uuid

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField
from confluent_kafka.serialization import SerializationContext as ConfluentContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from monasca_common.kafka import SerializationContext, load_serializer
from monasca_common.kafka.errors import SerializationError
from monasca_common.tests.contracts.schemas import PROTO_READING, VALUE, reading_class
from monasca_common.tests.unit.kafka.serialization.test_registry import MemoryRegistryCase


def nested_classes():
    """Return the classes First, Second and Second.Inner of one file."""
    file = descriptor_pb2.FileDescriptorProto(name="nested.proto", package="nested", syntax="proto3")
    file.message_type.add(name="First").field.add(name="a", number=1, type=9, label=1)
    second = file.message_type.add(name="Second")
    second.nested_type.add(name="Other")
    second.nested_type.add(name="Inner").field.add(name="a", number=1, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("nested.First", "nested.Second", "nested.Second.Inner")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


class ProtobufTest(MemoryRegistryCase):
    def serializer(self, kind, **options):
        return load_serializer("protobuf", conf=self.conf(**options), type=kind)

    def test_values_of_confluents_serializer_have_the_same_bytes(self):
        client = SchemaRegistryClient({"url": self.url})
        self.addCleanup(client.close)
        for kind in nested_classes():
            topic = f"{self.topic}-{kind.DESCRIPTOR.name}"
            value = kind(a="x") if "a" in kind.DESCRIPTOR.fields_by_name else kind()
            theirs = ProtobufSerializer(kind, client)(value, ConfluentContext(topic, MessageField.VALUE))
            context = SerializationContext(topic)
            self.assertEqual(value, self.serializer(kind).loads(theirs, context))
            self.assertEqual(theirs, self.serializer(kind, auto_register=False).dumps(value, context))

    def test_another_message_type_of_the_file_is_rejected(self):
        first, _, inner = nested_classes()
        value = self.serializer(first, schema='syntax = "proto3";').dumps(first(a="x"), self.context)

        error = self.assertRaises(SerializationError, self.serializer(inner).loads, value, self.context)
        self.assertIn("another message type", str(error))

    def test_the_position_of_the_first_message_type_may_be_written_in_full(self):
        first, second, _ = nested_classes()
        value = b"\0\0\0\0\1\2\0" + first(a="x").SerializeToString()

        self.assertEqual(first(a="x"), self.serializer(first).loads(value, self.context))
        self.assertRaises(SerializationError, self.serializer(second).loads, value, self.context)

    def test_reading_needs_no_registry(self):
        reading, _ = reading_class()
        serializer = self.serializer(reading, schema=PROTO_READING)
        value = serializer.dumps(reading(room="hall"), self.context)
        self.memory.stop()

        self.assertEqual(reading(room="hall"), self.serializer(reading).loads(value, self.context))

    def test_a_value_is_read_whose_schema_is_in_a_header(self):
        reading, _ = reading_class()
        headers = (("__value_schema_id", b"\1" + uuid.uuid4().bytes + b"\2\2"),)
        context = SerializationContext(self.topic, headers=headers)

        value = reading(room="hall").SerializeToString()
        self.assertEqual(reading(room="hall"), self.serializer(reading).loads(value, context))

    def test_bytes_that_are_not_a_message_are_rejected_with_their_schema(self):
        reading, other = reading_class()
        serializer = self.serializer(reading, schema=PROTO_READING, mixed_topics=[self.topic])
        value = serializer.dumps(reading(room="hall"), self.context)
        for wrong in (value[:-1], value + b"\xff", value[:5], json.dumps(VALUE).encode()):
            self.assertRaises(SerializationError, serializer.loads, wrong, self.context)
        error = self.assertRaises(SerializationError, serializer.loads, value[:-1], self.context)
        self.assertIn("schema 2", str(error))
        self.assertRaises(SerializationError, serializer.dumps, other(), self.context)
        self.assertRaises(SerializationError, serializer.dumps, VALUE, self.context)
