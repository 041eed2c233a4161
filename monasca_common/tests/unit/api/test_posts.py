# SPDX-License-Identifier: Apache-2.0
import json
import math

from monasca_common.kafka.transport.memory.faults import Fail, LoseAnswer
from monasca_common.tests.unit.api.api_case import SECONDS, ApiCase, metric

METRICS, LOGS, EVENTS = "/v2.0/metrics", "/v2.0/logs", "/v1.0/events"


class TestMetrics(ApiCase):
    def test_one_metric_is_in_kafka_when_it_is_answered(self):
        answer = self.post(METRICS, metric(value_meta={"rc": "0"}))
        self.assertEqual((204, b""), (answer.status_code, answer.content))
        (envelope,) = self.values()
        self.assertEqual(metric(value_meta={"rc": "0"}), envelope["metric"])
        self.assertEqual({"tenantId": "t1", "region": "RegionOne"}, envelope["meta"])
        self.assertIsInstance(envelope["creation_time"], int)

    def test_a_list_becomes_a_message_for_each(self):
        self.assertEqual(204, self.post(METRICS, [metric("a"), metric("b")]).status_code)
        self.assertEqual(["a", "b"], sorted(value["metric"]["name"] for value in self.values()))

    def test_a_float_timestamp_is_floored(self):
        self.post(METRICS, metric(timestamp=1_700_000_000_000.9))
        self.assertEqual(1_700_000_000_000, self.values()[0]["metric"]["timestamp"])

    def test_names_of_many_bytes_arrive_as_they_were(self):
        self.post(METRICS, metric("température.été", dimensions={"ort": "Zürich 東京 🌡"}))
        self.assertEqual("température.été", self.values()[0]["metric"]["name"])
        self.assertEqual({"ort": "Zürich 東京 🌡"}, self.values()[0]["metric"]["dimensions"])

    def test_messages_have_no_key_so_that_one_tenant_spreads_over_partitions(self):
        self.post(METRICS, metric())
        self.assertIsNone(self.records()[0].key)

    def test_a_body_cannot_name_its_tenant(self):
        self.post(METRICS, metric(tenant_id="t2", tenantId="t2", meta={"tenantId": "t2"}))
        self.assertEqual("t1", self.values()[0]["meta"]["tenantId"])
        self.assertNotIn("t2", self.records()[0].value.decode())

    def test_a_refusal_tells_every_violation_with_its_place_and_takes_nothing(self):
        answer = self.post(METRICS, [metric(), metric("a b", value=None), metric(dimensions={"_x": ""})])
        self.assertEqual(422, answer.status_code)
        places = [violation["where"] for violation in answer.json["error"]["violations"]]
        self.assertEqual({"[1].name", "[1].value"}, {place for place in places if place.startswith("[1]")})
        self.assertTrue(any(place.startswith("[2].dimensions") for place in places))
        self.assertIn("[1].name", answer.json["error"]["message"])
        self.assertEqual([], self.records())

    def test_what_is_no_number_is_refused(self):
        for text in (b"NaN", b"Infinity", b"1e999", b"null", b'"1"', b"true"):
            body = b'{"name": "a", "timestamp": 1700000000000, "value": ' + text + b"}"
            self.assertIn(self.post(METRICS, body).status_code, (400, 422), text)
        self.assertEqual([], self.records())

    def test_what_is_not_json_is_a_bad_request(self):
        for body in (b"", b"{", b"nope", b"\xff\xfe", b"[1,"):
            answer = self.post(METRICS, body)
            self.assertEqual((400, 400), (answer.status_code, answer.json["error"]["code"]), body)

    def test_json_that_is_no_metric_is_unprocessable(self):
        for body in (b"1", b'"a"', b"null", b"[1]", b"{}", b"[[]]"):
            self.assertEqual(422, self.post(METRICS, body).status_code, body)


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


class TestDropping(ApiCase):
    settings = {"invalid_metrics": "drop"}  # noqa: RUF012

    def test_good_ones_are_taken_and_bad_ones_dead_lettered_and_counted(self):
        bad = metric("a b")
        answer = self.post(METRICS, [metric("a"), bad, metric("c")])
        self.assertEqual((204, "1"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual(["a", "c"], sorted(value["metric"]["name"] for value in self.values()))
        (letter,) = self.records("metrics.dlq")
        self.assertEqual(bad, json.loads(letter.value)["metric"])
        self.assertEqual("t1", json.loads(letter.value)["meta"]["tenantId"])
        headers = dict(letter.headers)
        self.assertIn(b"[1].name", headers["dead-letter-error-text"])
        self.assertEqual(b"metrics", headers["dead-letter-origin-topic"])

    def test_also_when_all_are_bad(self):
        answer = self.post(METRICS, [metric(""), metric("(")])
        self.assertEqual((204, "2"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual((0, 2), (len(self.records()), len(self.records("metrics.dlq"))))

    def test_nothing_is_said_of_rejects_where_there_are_none(self):
        self.assertNotIn("Monasca-Rejected", self.post(METRICS, metric()).headers)

    def test_a_dead_letter_that_is_not_acknowledged_is_no_success(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic="metrics.dlq")
        answer = self.post(METRICS, [metric(), metric("(")])
        self.assertEqual(503, answer.status_code)
        self.assertEqual((1, 1), (answer.json["error"]["delivered"], answer.json["error"]["failed"]))

    def test_what_is_not_json_at_all_is_still_refused(self):
        self.assertEqual(400, self.post(METRICS, b"[{").status_code)


class TestLogs(ApiCase):
    def test_each_log_is_a_message_with_the_common_dimensions(self):
        body = {"dimensions": {"service": "nova"}, "logs": [{"message": "a", "dimensions": {"host": "h"}}]}
        self.assertEqual(204, self.post(LOGS, body).status_code)
        (envelope,) = self.values("log")
        self.assertEqual("a", envelope["log"]["message"])
        self.assertEqual({"service": "nova", "host": "h"}, envelope["log"]["dimensions"])
        self.assertEqual("t1", envelope["meta"]["tenantId"])

    def test_no_logs_are_unprocessable(self):
        for body in ({"dimensions": {}}, {"logs": None}, {}):
            self.assertEqual(422, self.post(LOGS, body).status_code, body)

    def test_an_empty_body_and_a_missing_type_are_bad_requests(self):
        self.assertEqual(400, self.post(LOGS, b"").status_code)
        self.assertEqual(400, self.post(LOGS, {"logs": [{"message": "a"}]}, {"Content-Type": ""}).status_code)

    def test_another_type_is_not_taken(self):
        self.assertEqual(415, self.post(LOGS, b"a line", {"Content-Type": "text/plain"}).status_code)


class TestEvents(ApiCase):
    def test_each_event_is_a_message(self):
        event = {"event_type": "compute.instance.create", "payload": {"a": 1}}
        body = {"timestamp": "2026-01-31T06:00:00Z", "events": [{"dimensions": {"s": "x"}, "event": event}]}
        self.assertEqual(200, self.post(EVENTS, body).status_code)
        (envelope,) = self.values("monevents")
        self.assertEqual("compute.instance.create", envelope["event"]["event_type"])
        self.assertEqual({"project_id": "t1"}, envelope["meta"])

    def test_nothing_posted_is_unprocessable(self):
        for body in (b"", b"{}", b'{"events": []}', b'{"timestamp": "2026-01-31T06:00:00Z"}'):
            self.assertEqual(422, self.post(EVENTS, body).status_code, body)


class TestElsewhere(ApiCase):
    def test_unknown_paths_and_methods_have_the_same_body(self):
        for method, path, code in (("GET", "/v9", 404), ("PUT", METRICS, 405), ("POST", "/v2.0", 405)):
            answer = self.client.simulate_request(method, path)
            self.assertEqual((code, code), (answer.status_code, answer.json["error"]["code"]))

    def test_versions(self):
        version = self.client.simulate_get("/v2.0").json
        self.assertEqual(("v2.0", "CURRENT"), (version["id"], version["status"]))
        self.assertTrue(version["links"][0]["href"].endswith("/v2.0"))
        self.assertRegex(version["updated"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertEqual([version], self.client.simulate_get("/").json["elements"])
