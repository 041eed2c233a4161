# SPDX-License-Identifier: Apache-2.0
"""The driver resolves schemas, and executors decode without a registry. Here, a copy of the reader is the executor."""

import fixtures
import pyarrow as pa
from oslotest import base

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import RegistryUnavailable
from monasca_common.kafka.testing import MemoryRegistry, VirtualClock
from monasca_common.models import avro, metric
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.spark import schemas
from monasca_common.pipeline.spark.schemas import BatchSchemas, readable
from monasca_common.runtime.envelopes import EnvelopeWriter

METRIC = b'{"name":"cpu","dimensions":{"hostname":"h"},"timestamp":5,"value":%d}'
JSON = metric.envelopes([METRIC % value for value in range(3)], "t", "r", 1.5)
UNKNOWN = b"\0\0\0\0\x63x"


class BatchSchemasTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        self.clock = VirtualClock()
        client = "monasca_common.kafka.serialization.registry_client.SystemClock"
        self.useFixture(fixtures.MonkeyPatch(client, lambda: self.clock))
        settings = SchemaRegistrySettings(url=self.registry.url, auto_register=True)
        self.values = EnvelopeWriter(settings, avro.METRICS, "metrics").values(JSON)
        self.job = BatchSchemas(None, StreamSettings(None, None, "", registry=settings))
        self.attempts = 0

    def decoded(self, *tasks):
        """Return the texts and errors of a batch; each of ``tasks`` has the values of its Arrow batches."""

        def attempt(reader):
            self.attempts += 1
            found, errors = [], []
            for task in tasks:
                schemas._unpickled.cache_clear()
                build, arguments = reader.__reduce__()
                executor = build(*arguments)
                batches = [pa.record_batch({"value": pa.array(values, pa.binary())}) for values in task]
                for batch in readable(batches, executor):
                    texts, refused = executor.as_json(batch.column("value").to_pylist())
                    found += texts
                    errors += map(str, refused.values())
            return found, errors

        return self.job.run(attempt)

    def test_executors_decode_known_schemas_while_the_registry_is_unavailable(self):
        expected = self.decoded([self.values])
        self.assertEqual((3, []), (len(expected[0]), expected[1]))
        self.registry.stop()
        self.clock.advance(3600)

        self.assertEqual(expected, self.decoded([self.values]))
        self.assertEqual(3, self.attempts)

    def test_the_driver_requests_a_schema_once_for_all_tasks_and_repeats_the_batch(self):
        before = len(self.registry.requests)
        texts, errors = self.decoded([self.values[:1], JSON[:1]], [JSON[:1], self.values], [JSON[:1]])

        self.assertEqual((7, []), (len(texts), errors))
        self.assertEqual((2, 1), (self.attempts, len(self.registry.requests) - before))

    def test_a_batch_waits_in_the_driver_while_the_registry_is_unavailable(self):
        self.registry.stop()
        self.assertRaises(RegistryUnavailable, self.decoded, [self.values])
        self.assertRaises(RegistryUnavailable, self.decoded, [self.values])
        self.assertEqual(1, self.attempts)  # not again before the schema is known
        self.registry.start()
        self.clock.advance(60)
        self.assertEqual(3, len(self.decoded([self.values])[0]))

    def test_an_unknown_id_is_refused_with_its_number_and_requested_again_in_the_next_batch(self):
        for _ in range(2):
            before = len(self.registry.requests)
            for _ in range(30):
                try:
                    texts, errors = self.decoded([[self.values[0], UNKNOWN, None]])
                    break
                except RegistryUnavailable as later:
                    self.clock.advance(later.after)
            self.assertEqual([1, None, None], [text and 1 for text in texts])
            self.assertIn("no schema 99", errors[0])
            self.assertIn("GET /schemas/ids/99", self.registry.requests[before:])

    def test_values_in_json_need_no_registry(self):
        self.registry.stop()
        self.assertEqual((JSON, []), self.decoded([JSON]))
        self.assertEqual(1, self.attempts)
