# SPDX-License-Identifier: Apache-2.0
"""Comparison of mappings with the latest schemas of a registry."""

import json

from monasca_common.kafka.errors import RetryLater
from monasca_common.sink import service
from monasca_common.sink.schemas import schema_findings
from monasca_common.tests.unit.sink.test_formats import ORDER_PROTO, RegistryTestCase, order_class

_TABLE = '[orders]\ntopic = "t"\nserializer = "{}"\n{}\n[orders.columns]\n{}\n'
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "buyer", "type": {"type": "record", "name": "P", "fields": [{"name": "name", "type": "string"}]}},
        {"name": "payer", "type": ["null", "P"]},
        {"name": "lines", "type": {"type": "array", "items": "P"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    ],
}
_JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "state": {"enum": ["new", "paid"]},
        "buyer": {"$ref": "#/$defs/person"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/person"}},
        "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "free": {},
        "parent": {"$ref": "#"},
        "other": {"$ref": "elsewhere.json"},
        "open": {"type": "object"},
        "closed": {"type": "object", "additionalProperties": False},
        "joined": {"allOf": [{"properties": {"a": {}}}, {"required": ["a"]}]},
    },
    "$defs": {"person": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


class SchemasTest(RegistryTestCase):
    def findings(self, serializer, columns, *, fields="", options=""):
        conf = self.configured(options)
        (decoder,) = service.decoders(self.mapping(_TABLE.format(serializer, fields, columns)), conf).values()
        return [tuple(each) for each in schema_findings(decoder, decoder.tables[0])]

    def avro(self, columns, **more):
        self.register(_AVRO)
        return self.findings("avro", columns, **more)

    def json(self, columns, **more):
        self.register(_JSON, "JSON")
        return self.findings("json-schema", columns, **more)

    def protobuf(self, columns, **more):
        self.register(ORDER_PROTO, "PROTOBUF")
        self.patch_message_type(order_class())
        return self.findings("protobuf", columns, **{"fields": 'message_type = "order"', **more})

    def test_columns_of_each_avro_type_that_can_store_it_are_accepted(self):
        columns = (
            'id = "integer"\nnote = "text"\nat = "timestamp"\nprice = "numeric"\nbuyer = "json"\ntags = "json"\n'
            'name = {type = "text", from = "value.payer.name"}\nline = {type = "text", from = "value.lines[1].name"}\n'
            'tag = {type = "integer", from = "value.tags.any"}\noffset = {type = "integer", from = "offset"}\n'
        )
        self.assertEqual([], self.avro(columns))

    def test_missing_fields_and_other_types_of_avro_are_found(self):
        missing = "which the latest schema of t-value does not have: correct the path or the schema"
        differs = "in the latest schema of t-value: correct the type or the path"
        self.assertEqual(
            [
                (f"column 'text' reads value.text, {missing}", "not stored"),
                (f"column 'no' reads value.buyer.no, {missing}", "dead letter"),
                (f"column 'note' reads value.note, which is text, not an integer {differs}", "dead letter"),
                (f"column 'at' reads value.at, which is datetime, not text {differs}", "dead letter"),
            ],
            self.avro(
                'text = "text"\nno = {type = "text", from = "value.buyer.no", required = true}\nnote = "integer"\n'
                'at = "text"'
            ),
        )

    def test_each_must_be_an_array_and_its_elements_have_the_fields(self):
        self.assertEqual([], self.avro('name = "text"', fields='each = "value.lines"'))
        (finding,) = self.avro('nothing = "text"', fields='each = "value.lines"')
        self.assertIn("column 'nothing' reads element.nothing, which", finding[0])
        (finding, _) = self.avro('name = "text"', fields='each = "value.buyer"')
        self.assertIn("each reads value.buyer, which is not an array in the latest schema", finding[0])

    def test_a_reader_schema_replaces_the_latest_one(self):
        reader = {"type": "record", "name": "Order", "fields": [{"name": "text", "type": "string", "default": ""}]}
        file = self.folder / "reader.avsc"
        file.write_text(json.dumps(reader))
        options = f"reader_schema_files = t={file}"
        self.assertEqual([], self.avro('text = "text"', options=options))
        (finding,) = self.avro('id = "integer"', options=options)
        self.assertIn("which the schema of reader_schema_files does not have", finding[0])

    def test_references_unions_and_enums_of_json_schema(self):
        columns = (
            'id = "integer"\nstate = "text"\nprice = "double"\nfree = "timestamp"\n'
            'name = {type = "text", from = "value.buyer.name"}\nline = {type = "text", from = "value.lines[0].name"}\n'
            'up = {type = "integer", from = "value.parent.parent.id"}\n'
            'other = {type = "text", from = "value.other.x.y"}\nopen = {type = "text", from = "value.open.x.y"}\n'
        )
        self.assertEqual([], self.json(columns))
        found = self.json('nothing = "text"\nname = {type = "integer", from = "value.buyer.name"}\nstate = "integer"')
        self.assertEqual(["not stored", "dead letter", "dead letter"], [effect for _, effect in found])
        for name in ("closed", "joined"):
            ((text, _),) = self.json(f'x = {{type = "text", from = "value.{name}.x"}}')
            self.assertIn("does not have", text)

    def test_a_time_that_is_read_as_an_integer_is_an_integer(self):
        found = self.avro('id = {type = "integer", from = "value.exact"}\nlocal = "timestamp"\nexact = "timestamp"')
        self.assertEqual([], found)

    def test_fields_of_a_protobuf_message_are_those_of_the_class_and_of_the_schema(self):
        columns = (
            'id = "integer"\nnote = "text"\nat = "timestamp"\ntags = "json"\nlines = "json"\n'
            'line = {type = "text", from = "value.lines[0].article"}\ntag = {type = "integer", from = "value.tags.a"}\n'
        )
        self.assertEqual([], self.protobuf(columns))
        found = self.protobuf(
            'no = "text"\nstate = "text"\nid = "text"\nline = {type = "text", from = "value.lines.article"}'
        )
        self.assertIn(
            "value.no, which the latest schema of t-value, or the generated class, does not have", found[0][0]
        )
        self.assertIn("value.state, which the latest schema", found[1][0])
        self.assertIn("'id' reads value.id, which is an integer, not text in", found[2][0])
        self.assertIn("value.lines.article, which", found[3][0])

    def test_a_topic_without_a_schema_is_not_compared(self):
        ((text, effect),) = self.findings("avro", 'id = "integer"')
        self.assertEqual("", effect)
        self.assertIn("the latest schema of its values is not compared: Subject 't-value' not found. (40401)", text)

    def test_a_schema_that_cannot_be_read_is_refused(self):
        bomb = {"type": "array", "items": "null"}  # the decoder refuses arrays of items of zero bytes
        self.register({"type": "record", "name": "Bomb", "fields": [{"name": "id", "type": bomb}]})
        ((text, effect),) = self.findings("avro", 'id = "integer"')
        self.assertEqual("refused", effect)
        self.assertIn("the latest schema of its values is not compared: ", text)

    def test_keys_have_their_own_schema(self):
        key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
        self.register(key, subject="t-key")
        columns = 'id = {{type = "integer", from = "key.{}"}}'
        fields = 'key_serializer = "avro"'
        self.assertEqual([], self.findings("json", columns.format("id"), fields=fields))
        ((text, _),) = self.findings("json", columns.format("no"), fields=fields)
        self.assertIn("column 'id' reads key.no, which the latest schema of t-key does not have", text)

    def test_a_subject_with_the_name_of_the_record_needs_the_file_of_the_schema(self):
        self.register(_AVRO, subject="t-Order")
        strategy = "subject_name_strategy = topic-record"
        ((text, effect),) = self.findings("avro", 'id = "text"', options=strategy)
        self.assertEqual("", effect)
        self.assertIn("the strategy topic-record of its subject needs the file of t in schema_files", text)
        file = self.folder / "order.avsc"
        file.write_text(json.dumps(_AVRO))
        ((text, _),) = self.findings("avro", 'id = "text"', options=f"{strategy}\nschema_files = t={file}")
        self.assertIn("in the latest schema of t-Order", text)

    def test_an_unavailable_registry_is_an_error_and_not_a_difference(self):
        self.registry.stop()
        error = self.assertRaises(RetryLater, self.findings, "avro", 'id = "integer"')
        self.assertIn("is unavailable (", str(error))
