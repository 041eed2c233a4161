# SPDX-License-Identifier: Apache-2.0
"""Posts whose messages are in Avro."""

import json

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.tests.unit.api.api_case import ApiCase

POSTS = {
    "metrics": (
        "/v2.0/metrics",
        {"name": "cpu", "timestamp": 1_790_000_000_000, "value": 1.5, "dimensions": {"a": "b"}},
    ),
    "log": ("/v2.0/logs", {"logs": [{"message": "m", "dimensions": {"a": "b"}, "level": {"n": 1}}]}),
    "monevents": ("/v1.0/events", {"events": [{"event": {"event_type": "e", "payload": {"p": [1]}}}]}),
}


class AvroPostsTest(ApiCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        self.reading = SchemaRegistrySettings(url=self.registry.url)

    def avro_client(self, changes=None, **options):
        registry = SchemaRegistrySettings(url=self.registry.url, auto_register=True, **options)
        formats = dict.fromkeys(("metrics_format", "logs_format", "events_format"), "avro")
        return self.new_client(registry=registry, **(formats | (changes or {})))

    def test_messages_in_avro_have_the_same_envelopes(self):
        client, reader = self.avro_client(), EnvelopeReader(self.reading)
        for topic, (path, body) in POSTS.items():
            for each in (self.client, client):
                self.assertLess(self.post(path, body, client=each).status_code, 300)
            in_json, in_avro = sorted((record.value for record in self.records(topic)), reverse=True)
            self.assertEqual(b"\0", in_avro[:1])
            self.assertLess(len(in_avro), len(in_json))
            expected, read = json.loads(in_json), json.loads(reader.text(in_avro))
            self.assertEqual(without_null(expected), without_null(read))

    def test_without_the_registry_nothing_is_sent_and_the_post_is_repeated_later(self):
        client = self.avro_client()
        self.registry.stop()
        path, body = POSTS["metrics"]
        answer = self.post(path, body, client=client)
        self.assertEqual((503, []), (answer.status_code, self.records()))
        self.assertIn("Retry-After", answer.headers)
        self.assertNotIn(self.registry.url, answer.text)

    def test_kinds_of_messages_that_share_a_topic_have_their_own_formats_and_schemas(self):
        topics = {"metrics_topic": "log", "events_format": "json", "events_topic": "log"}
        client = self.avro_client(topics, topic_strategies={"log": "topic-record"})
        for path, body in POSTS.values():
            self.assertLess(self.post(path, body, client=client).status_code, 300)
        values, reader = [record.value for record in self.records("log")], EnvelopeReader(self.reading)
        self.assertEqual([b"\0", b"\0", b"{"], sorted(value[:1] for value in values))
        kinds = {next(iter(json.loads(reader.text(value)))) for value in values}
        self.assertEqual({"metric", "log", "event"}, kinds)
        subjects = self.registry.answer("GET", "/subjects", {})[1]
        self.assertEqual(["log-monasca.LogEnvelope", "log-monasca.MetricEnvelope"], subjects)

    def test_a_registry_that_hangs_delays_one_post(self):
        client = self.avro_client(timeout_seconds=2.0)
        self.registry.fault = "hang"
        path, body = POSTS["metrics"]
        asked = len(self.registry.requests)
        for _ in range(5):
            self.assertEqual(503, self.post(path, body, client=client).status_code)
        self.assertEqual(1, len(self.registry.requests) - asked)

    def test_a_writer_that_knows_its_schema_needs_no_registry(self):
        client = self.avro_client()
        path, body = POSTS["metrics"]
        self.post(path, body, client=client)
        self.registry.stop()
        self.assertEqual(204, self.post(path, body, client=client).status_code)


def without_null(envelope):
    return {name: omit_null(each) if isinstance(each, dict) else each for name, each in envelope.items()}


def omit_null(members):
    return {name: value for name, value in members.items() if value is not None}
