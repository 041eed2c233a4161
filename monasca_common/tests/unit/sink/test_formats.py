# SPDX-License-Identifier: Apache-2.0
"""Fields of Avro records and of objects such as Protobuf messages."""

import datetime
import decimal
import enum
import io
import json
import math
import urllib.request
from collections import UserDict, UserList
from types import SimpleNamespace
from unittest import mock

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from oslo_config import cfg

from monasca_common.kafka.errors import RetryLater, SerializationError
from monasca_common.kafka.serialization.json import PLAIN
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.sink import service
from monasca_common.sink.fields import Steps, columns_at, loads_of
from monasca_common.storage.tables.column_types import TYPES
from monasca_common.tests.unit.sink.sink_case import SinkTestCase, batch, message

ORDER_PROTO = """\
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";  // of "at"
/* message Order { string no = 1; } */
message Order {
  option (shape) = { text: "{" };
  int64 id = 1 [deprecated = true];
  oneof note_or_none { string note = 2; }
  message Line { string article = 1; }
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
  map<string, int32> tags = 5;
}
"""
_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "buyer", "type": {"type": "record", "name": "Buyer", "fields": [{"name": "name", "type": "string"}]}},
    ],
}
_MAPPING = """\
[orders]
topic = "t"
serializer = "avro"
mode = "upsert"
key = ["id"]
[orders.columns]
id = "integer"
at = "timestamp"
price = "numeric"
buyer = {type = "text", from = "value.buyer.name"}
"""
_NUMBERS_MAPPING = """\
[samples]
topic = "t"
serializer = "avro"
mode = "upsert"
key = ["id"]
[samples.columns]
id = "integer"
numbers = "json"
"""
_PROTOBUF_MAPPING = """\
[orders]
topic = "t"
serializer = "protobuf"
message_type = "order"
mode = "upsert"
key = ["id"]
[orders.columns]
id = "integer"
note = "text"
at = "timestamp"
second = {type = "text", from = "value.lines[1].article"}
tag = {type = "integer", from = "value.tags.a"}
lines = "json"
"""
_LINES_MAPPING = """\
[lines]
topic = "t"
serializer = "protobuf"
message_type = "order"
key = ["id", "line"]
each = "value.lines"
[lines.columns]
id = {type = "integer", from = "value.id"}
line = {type = "integer", from = "index"}
article = "text"
"""


def order_class():
    """Return the class of `ORDER_PROTO`, as protoc generates it, with a field ``state`` that the text does not have."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Line").field.add(name="article", number=1, type=9, label=1)
    entry = order.nested_type.add(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.oneof_decl.add(name="note_or_none")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="note", number=2, type=9, label=1, oneof_index=0)
    order.field.add(name="lines", number=3, type=11, type_name=".shop.Order.Line", label=3)
    order.field.add(name="at", number=4, type=11, type_name=".google.protobuf.Timestamp", label=1)
    order.field.add(name="tags", number=5, type=11, type_name=".shop.Order.TagsEntry", label=3)
    order.field.add(name="state", number=6, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


class RegistryTestCase(SinkTestCase):
    """A sink's handler with a schema registry in memory."""

    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())

    def configured(self, options=""):
        file = self.folder / "sink.conf"
        file.write_text(f"[schema_registry]\nurl = {self.registry.url}\ntimeout_seconds = 30\n{options}\n")
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(file)], project="monasca-common")
        return conf

    def register(self, schema, kind="AVRO", *, subject="t-value"):
        """Register a schema and return the start of its values."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = json.dumps({"schema": text, "schemaType": kind}).encode()
        address = f"{self.registry.url}/subjects/{subject}/versions"
        request = urllib.request.Request(address, body, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        with urllib.request.urlopen(request) as answer:
            return b"\0" + json.load(answer)["id"].to_bytes(4)

    def patch_message_type(self, generated):
        """Install a class as entry point of every name."""
        self.enterContext(mock.patch.object(service, "entry_point", return_value=generated))


class AvroTest(RegistryTestCase):
    def setUp(self):
        super().setUp()
        self.conf = self.configured()

    def encoded(self, value, schema=_SCHEMA):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(dict(schema)), value)
        return self.register(schema) + out.getvalue()

    def order(self):
        at = datetime.datetime(2026, 1, 31, 6, tzinfo=datetime.UTC)
        return self.encoded({"id": 1, "at": at, "price": decimal.Decimal("12.50"), "buyer": {"name": "Ada"}})

    def test_fields_of_a_record_are_columns(self):
        self.open(_MAPPING, conf=self.conf)
        letters = self.process(batch("t", [message(self.order()), message(b"\0\0\0\0\x01x")]))
        self.assertEqual({1}, letters.keys())
        self.assertEqual([(1, "2026-01-31 06:00:00.000000", "12.50", "Ada")], self.select("SELECT * FROM orders"))

    def test_a_number_that_json_does_not_have_is_not_stored_as_null(self):
        numbers = {"name": "numbers", "type": {"type": "array", "items": ["null", "double"]}}
        fields = [{"name": "id", "type": "long"}, numbers]
        schema = {"type": "record", "name": "Sample", "fields": fields}
        self.open(_NUMBERS_MAPPING, conf=self.conf)
        values = [{"id": 1, "numbers": [None, 1.5]}, {"id": 2, "numbers": [float("nan")]}]
        letters = self.process(batch("t", [message(self.encoded(value, schema)) for value in values]))
        self.assertEqual({1: "column 'numbers' has NaN or an infinity"}, letters)
        self.assertEqual([(1, "[null,1.5]")], self.select("SELECT * FROM samples"))

    def test_an_unavailable_registry_produces_no_dead_letters(self):
        value = self.order()
        self.open(_MAPPING, conf=self.conf)
        self.registry.stop()
        self.assertRaises(RetryLater, self.handler, batch("t", [message(value)]))
        self.registry.start()
        self.open(_MAPPING, conf=self.conf)  # without the back-off of the former client
        self.handler(batch("t", [message(value)]))
        self.assertEqual([(1,)], self.select("SELECT id FROM orders"))


class ProtobufTest(RegistryTestCase):
    """A generated class, and its bytes as Confluent's serializer writes them."""

    def test_fields_of_a_generated_message_are_columns(self):
        self.patch_message_type(order_class())
        start = self.register(ORDER_PROTO, "PROTOBUF") + b"\0"  # the position of the message in its file
        self.open(_PROTOBUF_MAPPING, conf=self.configured())
        order = order_class()(id=1, tags={"a": 5}, lines=[{"article": "bolt"}, {"article": "nut"}])
        order.at.FromJsonString("2026-01-31T06:00:00Z")
        values = [start + order.SerializeToString(), start + order_class()(id=0, note="").SerializeToString()]
        letters = self.process(batch("t", [message(value) for value in (*values, start + b"\x0a", b"{}")]))
        self.assertEqual([2, 3], sorted(letters))
        self.assertIn("value: not a Order (schema 1)", letters[2])
        at = "2026-01-31 06:00:00.000000"
        self.assertEqual(
            [(0, "", None, None, None, "[]"), (1, None, at, "nut", 5, '[{"article":"bolt"},{"article":"nut"}]')],
            self.select("SELECT * FROM orders ORDER BY id"),
        )

    def test_each_element_of_a_repeated_field_is_a_row(self):
        self.patch_message_type(order_class())
        start = self.register(ORDER_PROTO, "PROTOBUF") + b"\0"
        self.open(_LINES_MAPPING, conf=self.configured())
        order = order_class()(id=7, lines=[{"article": "bolt"}, {"article": "nut"}])
        self.assertEqual({}, self.process(batch("t", [message(start + order.SerializeToString())])))
        self.assertEqual([(7, 0, "bolt"), (7, 1, "nut")], self.select("SELECT * FROM lines ORDER BY line"))

    def test_a_number_of_a_repeated_field_or_map_that_json_does_not_have_is_not_stored_as_null(self):
        at = datetime.datetime(2026, 1, 31, 6, tzinfo=datetime.UTC)
        values = [UserList([math.nan]), UserDict(a=math.inf), {"at": at, "a": UserList([None])}]
        stored, reasons = TYPES["json"].converted(values)
        self.assertEqual({0: "has NaN or an infinity", 1: "has NaN or an infinity"}, reasons)
        self.assertEqual('{"at":"2026-01-31T06:00:00+00:00","a":[null]}', stored[2])

    def test_members_of_enums_are_stored_as_their_texts(self):
        color = enum.Enum("Color", {"RED": "red, dark"}, type=str)
        for values in ([color.RED], [color.RED, "x"]):
            stored, reasons = TYPES["text"].converted(values)
            self.assertEqual(({}, {str}), (reasons, set(map(type, stored))))
            self.assertEqual("red, dark", stored[0])

    def test_large_integers_and_numbers_as_keys_of_maps_are_stored_as_json(self):
        values = [{"é": -(2**64)}, b'{"a": 123456789012345678901}', UserDict({1: "a"}), UserDict({True: UserList([1])})]
        stored, reasons = TYPES["json"].converted([*values, {"a": [2**64, math.nan]}, b"[" * 2000, {"a": b""}])
        texts = ['{"é":-18446744073709551616}', '{"a":123456789012345678901}', '{"1":"a"}', '{"true":[1]}']
        self.assertEqual((texts, [4, 5, 6]), (stored[:4], list(reasons)))


class PathsTest(SinkTestCase):
    def assert_read(self, expected, value, paths):
        columns = columns_at(paths, [value])
        self.assertEqual(expected, [columns[path][0] for path in paths])

    def test_fields_of_objects_are_read_and_missing_ones_are_null(self):
        class Order:
            buyer = SimpleNamespace(name="Ada")
            lines = ("bolt", "nut")
            unset = 0

            def HasField(self, name):  # noqa: N802
                if name == "lines":
                    raise ValueError
                return name != "unset"

        paths = [("buyer", "name"), ("lines", 1), ("lines", 2), ("unset",), ("other",), ("buyer", "__class__")]
        self.assert_read(["Ada", "nut", None, None, None, None], Order(), paths)

    def test_a_map_of_protobuf_has_no_key_of_another_type(self):
        self.assert_read([5, None], order_class()(tags={"a": 5}), [("tags", "a"), ("tags", 0)])

    def test_a_text_has_neither_fields_nor_positions(self):
        self.assert_read([None, None, None], {"a": "text"}, [("a", 0), ("a", "b"), ("a", "upper")])
        self.assert_read([None], {"a": 5}, [("a", "b")])

    def test_a_field_is_read_from_the_values_that_have_it(self):
        values = [{"a": {"b": 1}}, {"a": None}, {}, None, {"a": {"b": 2}}]
        self.assertEqual([1, None, None, None, 2], columns_at([("a", "b")], values)["a", "b"])


class JsonFieldsTest(SinkTestCase):
    VALUES = (
        b'{"a": {"b": 1, "c": "x", "items": {"get": 5}}, "d": 1.5, "items": 7}',
        b'{"d": null, "a": {"c": "\\u00e9", "more": [1, {"b": 2}]}, "more": 3}',
        b'{"a": null, "d": 18446744073709551616}',
        b'{"a": {"b": {"e": true}, "b": [0, "last"]}, "d": []}',
        b'{"a": 5, "d": 6}',
        '{"a": {"b": "é"}, "größe": 9, "user-id": 8, "_id": 4}'.encode(),
        *(b"{}", b"null", b"[1]", b'"text"', b"3"),
    )
    PATHS: tuple[list[Steps], ...] = (
        [],
        [()],
        [("a", "b"), ("a", "c"), ("d",), ("items",)],
        [("a", "items", "get"), ("größe",)],
        [("a",), ("a", "items"), ("a", "b")],
        [("a", "b", 1), ("d",)],
        [("user-id",), ("_id",), ("a", "b")],
    )

    def test_columns_are_equal_to_those_of_completely_decoded_values(self):
        for paths in self.PATHS:
            loads = loads_of(PLAIN, paths)
            for values in (*([value] for value in self.VALUES), self.VALUES, self.VALUES[:3], self.VALUES[:4:3]):
                expected, found = (columns_at(paths, list(map(each, values))) for each in (PLAIN.loads, loads))
                self.assertEqual([expected[path] for path in paths], [found[path] for path in paths], (paths, values))

    def test_a_value_that_is_not_json_is_refused_also_in_a_field_that_is_not_read(self):
        loads = loads_of(PLAIN, [("a",)])
        for text in (b"", b"NaN", b"01", b"[1,]", b'"\xff"', b'"\\ud800"', b'"\n"', b"nul", b"1}x", b"[" * 100_000):
            for value in (b'{"a": 1, "b": %b}' % text, b'{"a": %b, "b": 1}' % text):
                self.assertRaises(SerializationError, loads, value)

    def test_a_number_beyond_doubles_is_refused_only_in_a_field_that_a_column_reads(self):
        self.open('[facts]\ntopic = "t"\nkey = ["n"]\n[facts.columns]\nn = "integer"\nd = "double"\n')
        values = b'{"n": 1, "d": 2.5, "other": 1e999}', b'{"n": 2, "d": 1e999}', b'{"n": "3", "d": 1}'
        letters = self.process(batch("t", list(map(message, values))))
        self.assertEqual([(1, 2.5)], self.select("SELECT n, d FROM facts"))
        self.assertIn("value: not JSON: Number out of range", letters[1])
        self.assertEqual("column 'n' is text, not an integer", letters[2])
