# SPDX-License-Identifier: Apache-2.0
import math

from monasca_common.kafka.transport.memory.injection import Fail, LoseAnswer
from monasca_common.tests.unit.api.api_case import SECONDS, ApiCase, metric

METRICS = "/v2.0/metrics"


class TestUndelivered(ApiCase):
    def setUp(self):
        super().setUp()
        self.impatient = self.new_client(publish_timeout_seconds=SECONDS)
        self.post(METRICS, metric())

    def test_a_broker_that_is_away_is_told_as_unknown_and_to_be_tried_again(self):
        self.kafka.broker.disconnect()
        answer = self.post(METRICS, [metric("a"), metric("b")], client=self.impatient)
        self.assertEqual((503, "1"), (answer.status_code, answer.headers["Retry-After"]))
        counts = {name: answer.json["error"][name] for name in ("delivered", "failed", "unknown")}
        self.assertEqual({"delivered": 0, "failed": 0, "unknown": 2}, counts)

    def test_what_a_broker_refuses_is_told_as_failed(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic="metrics", nth=2)
        answer = self.post(METRICS, [metric("a"), metric("b")])
        self.assertEqual(503, answer.status_code)
        counts = {name: answer.json["error"][name] for name in ("delivered", "failed", "unknown")}
        self.assertEqual({"delivered": 1, "failed": 1, "unknown": 0}, counts)
        self.assertIn("1 delivered, 1 failed, 0 unknown", answer.json["error"]["message"])

    def test_an_answer_that_was_lost_is_never_success(self):
        self.kafka.broker.inject("produce", LoseAnswer(math.inf), topic="metrics")
        answer = self.post(METRICS, metric("a"), client=self.impatient)
        self.assertEqual((503, 1), (answer.status_code, answer.json["error"]["unknown"]))

    def test_a_message_larger_than_its_topic_takes_is_not_worth_sending_again(self):
        self.kafka.broker.create_topic("small", 1, max_message_bytes=1000)
        client = self.new_client(metrics_topic="small")
        large = metric("large", dimensions={f"d{number}": "x" * 200 for number in range(9)})
        answer = self.post(METRICS, [metric("a"), large], client=client)
        self.assertEqual(413, answer.status_code)
        self.assertEqual((1, 1), (answer.json["error"]["delivered"], answer.json["error"]["failed"]))

    def test_while_kafka_acknowledges_nothing_nobody_waits_for_it(self):
        self.kafka.broker.disconnect()
        self.post(METRICS, metric("waits"), client=self.new_client(publish_timeout_seconds=2 * SECONDS))
        client = self.new_client(stalled_after_seconds=SECONDS, publish_timeout_seconds=3600.0)
        answer = self.post(METRICS, [metric("a"), metric("b")], client=client)
        self.assertEqual(503, answer.status_code)
        self.assertEqual((0, 2, 0), tuple(answer.json["error"][name] for name in ("delivered", "failed", "unknown")))
        answer = self.post(METRICS, metric("a"), {"Idempotency-Key": "k"}, client=client)
        self.assertEqual((0, 0, 1), tuple(answer.json["error"][name] for name in ("delivered", "failed", "unknown")))
        self.kafka.broker.reconnect()
        self.producer.flush(5.0)
        self.assertEqual(204, self.post(METRICS, metric("c"), client=self.new_client()).status_code)
        self.assertEqual({"cpu.percent", "waits", "c"}, {value["metric"]["name"] for value in self.values()})
