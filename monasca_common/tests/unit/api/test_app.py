# SPDX-License-Identifier: Apache-2.0
import time

import fixtures
from falcon import testing

from monasca_common.api.service import Service, own_producer
from monasca_common.api.settings import api_settings
from monasca_common.audit import reports
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.unit.api.api_case import ApiCase, metric
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class TestUnknownPaths(ApiCase):
    def test_unknown_paths_and_methods_have_the_same_body(self):
        for method, path, code in (("GET", "/v9", 404), ("PUT", "/v2.0/metrics", 405), ("POST", "/v2.0", 405)):
            answer = self.client.simulate_request(method, path)
            self.assertEqual((code, code), (answer.status_code, answer.json["error"]["code"]))

    def test_a_nul_character_in_a_path_is_refused(self):
        for path in ("/v2.0/alarms/%00/state-history", "/v2.0/metrics%00", "/%00"):
            answer = self.client.simulate_get(path)
            self.assertEqual((404, 404), (answer.status_code, answer.json["error"]["code"]))


class TestLimits(ConfigurationTestCase):
    def statuses(self, *storage):
        """Return statuses for a metric of 50 days ago, and for one with three dimensions, without a database."""
        lines = [
            "[kafka]",
            "driver = memory",
            "bootstrap_servers = none:1",
            "[api]",
            "auth_strategy = noauth",
            *storage,
        ]
        service = Service(self.configured("\n".join(lines) + "\n"))
        self.addCleanup(service.close)
        client, now_ms = testing.TestClient(service.app), int(time.time() * 1000)
        old = metric(timestamp=now_ms - 50 * 86_400_000)
        three = metric(timestamp=now_ms, dimensions={"a": "1", "b": "2", "c": "3"})
        return [client.simulate_post("/v2.0/metrics", json=body).status_code for body in (old, three)]

    def test_without_limits_of_storage_the_defaults_apply(self):
        self.assertEqual([422, 204], self.statuses())

    def test_the_limits_of_storage_apply_without_a_database(self):
        self.assertEqual([204, 422], self.statuses("[storage]", "retention_days = 60", "max_dimensions = 2"))


class TestProducers(ConfigurationTestCase):
    def test_the_producers_are_not_transactional(self):
        conf = self.configured("[kafka]\ntransactional_id = agent-1\nbootstrap_servers = nowhere:1\n")
        self.assertIsNone(own_producer(conf, api_settings(conf)).transactional_id)


class TestAudit(ConfigurationTestCase):
    def test_acknowledged_messages_are_reported_to_the_audit_at_a_stop(self):
        kafka = self.useFixture(MemoryKafka())
        for topic in ("metrics", "monasca-audit"):
            kafka.broker.create_topic(topic)
        folder = self.useFixture(fixtures.TempDir()).path
        lines = ["[kafka]", "driver = memory", f"bootstrap_servers = {kafka.bootstrap_servers}"]
        lines += ["[api]", "auth_strategy = noauth", "[audit]", "enabled = true", f"folder = {folder}"]
        service = Service(self.configured("\n".join(lines) + "\n"))
        posted = [metric(timestamp=int(time.time() * 1000)) for _ in range(3)]
        answer = testing.TestClient(service.app).simulate_post("/v2.0/metrics", json=posted)
        service.close()

        self.assertEqual(204, answer.status_code)
        found = [reports.decode(message.value) for message in kafka.broker.records("monasca-audit")]
        counts = [(report.tier, count.topic, count.messages) for report in found for count in report.counts]
        written = len(kafka.broker.records("metrics"))
        self.assertEqual([("api", "metrics", written)], counts)
