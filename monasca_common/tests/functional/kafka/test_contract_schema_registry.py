# SPDX-License-Identifier: Apache-2.0
"""The contract of serializers, with Apicurio Registry."""

from __future__ import annotations

from monasca_common.devbroker import ApicurioRegistry
from monasca_common.kafka.errors import RegistryUnavailable
from monasca_common.tests.contracts.schemas import READING, VALUE, RegistryCase, SchemaContract
from monasca_common.tests.periodic import periodic


@periodic("a second registry, 142 MB to fetch; MemoryRegistryTest has the same contract")
class ApicurioRegistryTest(SchemaContract, RegistryCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.apicurio = ApicurioRegistry()
        cls.apicurio.__enter__()
        cls.url = cls.apicurio.url

    @classmethod
    def tearDownClass(cls):
        cls.apicurio.__exit__(None, None, None)
        super().tearDownClass()

    def test_a_registry_that_was_killed_and_has_lost_its_schemas_rejects_nothing(self):
        reader = self.avro(unknown_id_seconds=0.1)
        value = self.avro(schema=READING).dumps(VALUE, self.context)
        self.assertEqual(VALUE, reader.loads(value, self.context))
        self.apicurio.signal(9)
        self.assertTrue(self.apicurio.ended_within(15))
        self.assertEqual(VALUE, reader.loads(value, self.context))
        self.assertRaises(RegistryUnavailable, self.avro().loads, value, self.context)
        self.apicurio.start()
        lost = self.avro(unknown_id_seconds=0.1)
        error = self.assertRaises(RegistryUnavailable, lost.loads, value, self.context)
        self.assertIn("no schema", str(error))
