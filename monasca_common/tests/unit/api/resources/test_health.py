# SPDX-License-Identifier: Apache-2.0
import math

import falcon
from falcon import testing
from oslotest import base

from monasca_common.api.resources import health
from monasca_common.kafka import ProducerPool, producer_pool
from monasca_common.kafka.transport.memory.injection import Fail, LoseAnswer
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.tests.unit.api.api_case import SECONDS, ApiCase, metric


class Database:
    """A database that is empty or unavailable."""

    away = False
    asked = 0

    def series(self, which, page):
        self.asked += 1
        if self.away:
            raise StorageUnavailable("away")
        return []


class TestHealth(ApiCase):
    def setUp(self):
        super().setUp()
        self.database = Database()
        self.patch(producer_pool, "STALLED_AFTER_SECONDS", SECONDS)
        self.client = self.new_client(reader=self.database)

    def health(self, query="", path="/healthcheck"):
        answer = self.client.simulate_get(path + query)
        return answer.status_code, answer.json

    def test_a_worker_is_live_but_not_ready_while_its_database_is_unavailable(self):
        self.database.away = True
        self.assertEqual((200, {"live": True}), self.health(path="/healthz"))
        self.assertEqual(self.health(), self.health(path="/readyz"))
        self.assertEqual(503, self.health(path="/readyz")[0])
        self.assertEqual(200, self.health("?part=producer", path="/readyz")[0])

    def test_health_is_ok_if_all_parts_work(self):
        code, body = self.health()
        self.assertEqual(
            (200, "ok", "ok", "ok"), (code, body["status"], body["producer"]["status"], body["storage"]["status"])
        )

    def test_an_unavailable_database_fails_only_its_part(self):
        self.database.away = True
        code, body = self.health()
        self.assertEqual((503, "ok", "failing"), (code, body["producer"]["status"], body["storage"]["status"]))
        self.assertEqual(200, self.health("?part=producer")[0])
        self.assertEqual(503, self.health("?part=storage")[0])

    def test_posts_work_while_the_database_is_unavailable(self):
        self.database.away = True
        self.assertEqual(204, self.post("/v2.0/metrics", metric()).status_code)

    def test_a_stalled_kafka_is_reported(self):
        self.post("/v2.0/metrics", metric())
        self.kafka.broker.disconnect()
        client = self.new_client(publish_timeout_seconds=2 * SECONDS)
        self.post("/v2.0/metrics", metric(), client=client)
        code, body = self.health()
        self.assertEqual(
            (503, "failing", 1), (code, body["producer"]["status"], body["producer"]["outstanding_messages"])
        )

    def test_a_client_refused_by_kafka_is_reported(self):
        self.kafka.broker.inject("produce", Fail("TOPIC_AUTHORIZATION_FAILED"))
        self.post("/v2.0/metrics", metric())
        self.assertEqual(503, self.health()[0])

    def test_a_stalled_topic_is_named_and_the_part_is_ok_while_others_work(self):
        self.kafka.broker.inject("produce", LoseAnswer(math.inf), topic="log", count=None)
        client = self.new_client(publish_timeout_seconds=2 * SECONDS)
        self.client = self.new_client()
        self.assertEqual(204, self.post("/v2.0/metrics", metric()).status_code)
        self.post("/v2.0/logs", {"logs": [{"message": "a"}]}, client=client)
        self.post("/v2.0/logs", {"logs": [{"message": "a"}]})
        code, body = self.health("?part=producer")
        self.assertEqual((200, ["log"]), (code, body["producer"]["stalled_topics"]))

    def test_an_unknown_part_is_a_bad_request(self):
        self.assertEqual(400, self.health("?part=moon")[0])


class TestChecks(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.calls = 0
        app = falcon.App()
        app.add_route("/healthcheck", health.Health({"part": self.check}, monotonic=lambda: self.now))
        self.client = testing.TestClient(app)

    def check(self):
        self.calls += 1
        return health.CheckResult(self.calls == 1, {})

    def test_the_result_of_a_check_is_cached(self):
        codes = [self.client.simulate_get("/healthcheck").status_code for _ in range(3)]
        self.assertEqual(([200] * 3, 1), (codes, self.calls))

    def test_a_check_is_repeated_after_the_cache_time(self):
        self.client.simulate_get("/healthcheck")
        self.now = 60.0
        self.assertEqual(503, self.client.simulate_get("/healthcheck").status_code)


class TestProbe(ApiCase):
    def test_an_idle_producer_whose_brokers_do_not_respond_is_not_healthy(self):
        def probe():
            raise TimeoutError("nobody there")

        producers = ProducerPool(self.producer_of)
        self.assertFalse(health.producer_check(producers, probe)().ok)
        self.assertTrue(health.producer_check(producers, lambda: None)().ok)
