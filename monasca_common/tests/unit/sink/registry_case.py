# SPDX-License-Identifier: Apache-2.0
"""A sink's handler with a schema registry in memory."""

import json
import urllib.request
from unittest import mock

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from oslo_config import cfg

from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.sink import service
from monasca_common.tests.unit.sink.sink_case import SinkTestCase

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
