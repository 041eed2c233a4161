# SPDX-License-Identifier: Apache-2.0
"""Fields of Avro records and of objects such as Protobuf messages."""

import datetime
import decimal
import io
import json
import urllib.request
from types import SimpleNamespace

import fastavro
from oslo_config import cfg

from monasca_common.kafka.errors import RetryLater
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.sink.values import extractor
from monasca_common.tests.unit.sink.sink_case import SinkTestCase, batch, message

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


class AvroTest(SinkTestCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        file = self.folder / "sink.conf"
        file.write_text(f"[schema_registry]\nurl = {self.registry.url}\ntimeout_seconds = 1\n")
        self.conf = cfg.ConfigOpts()
        self.conf(["--config-file", str(file)], project="monasca-common")

    def encoded(self, value):
        body = json.dumps({"schema": json.dumps(_SCHEMA)}).encode()
        address = f"{self.registry.url}/subjects/t-value/versions"
        request = urllib.request.Request(address, body, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        with urllib.request.urlopen(request) as answer:
            number = json.load(answer)["id"]
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(dict(_SCHEMA)), value)
        return b"\0" + number.to_bytes(4) + out.getvalue()

    def order(self):
        at = datetime.datetime(2026, 1, 31, 6, tzinfo=datetime.UTC)
        return self.encoded({"id": 1, "at": at, "price": decimal.Decimal("12.50"), "buyer": {"name": "Ada"}})

    def test_fields_of_a_record_are_columns(self):
        self.open(_MAPPING, conf=self.conf)
        letters = self.process(batch("t", [message(self.order()), message(b"\0\0\0\0\x01x")]))
        self.assertEqual({1}, letters.keys())
        self.assertEqual([(1, "2026-01-31 06:00:00.000000", "12.50", "Ada")], self.select("SELECT * FROM orders"))

    def test_an_unavailable_registry_produces_no_dead_letters(self):
        value = self.order()
        self.open(_MAPPING, conf=self.conf)
        self.registry.stop()
        self.assertRaises(RetryLater, self.handler, batch("t", [message(value)]))
        self.registry.start()
        self.open(_MAPPING, conf=self.conf)  # without the back-off of the former client
        self.handler(batch("t", [message(value)]))
        self.assertEqual([(1,)], self.select("SELECT id FROM orders"))


class ExtractorTest(SinkTestCase):
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
        self.assertEqual(("Ada", "nut", None, None, None, None), extractor(paths)(Order()))

    def test_a_text_has_neither_fields_nor_positions(self):
        self.assertEqual((None, None, None), extractor([("a", 0), ("a", "b"), ("a", "upper")])({"a": "text"}))
        self.assertEqual((None,), extractor([("a", "b")])({"a": 5}))
