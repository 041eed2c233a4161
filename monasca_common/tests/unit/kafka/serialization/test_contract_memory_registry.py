# SPDX-License-Identifier: Apache-2.0
"""The contract of serializers, with the registry in memory."""

from __future__ import annotations

import uuid

from monasca_common.kafka import SerializationContext
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.tests.contracts.schemas import READING, VALUE, RegistryCase, SchemaContract


class MemoryRegistryTest(SchemaContract, RegistryCase):
    def setUp(self):
        super().setUp()
        self.memory = self.useFixture(MemoryRegistry())
        self.url = self.memory.url

    def check_backward(self, serializer, subject):
        """The registry in memory has only this level."""

    def test_a_value_is_read_whose_schema_is_in_a_header(self):
        value = self.avro(schema=READING).dumps(VALUE, self.context)
        guid = self.memory.answer("GET", f"/subjects/{self.topic}-value/versions/1", {})[1]["guid"]
        headers = (("__value_schema_id", b"\1" + uuid.UUID(guid).bytes),)

        self.assertEqual(VALUE, self.avro().loads(value[5:], SerializationContext(self.topic, headers=headers)))
