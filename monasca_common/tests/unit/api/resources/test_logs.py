# SPDX-License-Identifier: Apache-2.0
from monasca_common.api.query import iso
from monasca_common.tests.unit.api.api_case import NOW_MS, ApiCase

LOGS = "/v2.0/logs"


class TestLogs(ApiCase):
    def test_each_log_is_a_message_with_the_common_dimensions(self):
        body = {"dimensions": {"service": "nova"}, "logs": [{"message": "a", "dimensions": {"host": "h"}}]}
        self.assertEqual(204, self.post(LOGS, body).status_code)
        (envelope,) = self.values("log")
        self.assertEqual("a", envelope["log"]["message"])
        self.assertEqual({"service": "nova", "host": "h"}, envelope["log"]["dimensions"])
        self.assertEqual("t1", envelope["meta"]["tenantId"])

    def test_a_time_outside_the_limits_of_storage_is_refused(self):
        late = iso(NOW_MS + 2 * 86_400_000)
        answer = self.post(LOGS, {"logs": [{"message": "a"}, {"message": "b", "timestamp": late}]})
        (violation,) = answer.json["error"]["violations"]
        self.assertEqual((422, "logs[1].timestamp"), (answer.status_code, violation["where"]))
        self.assertIn("in the future", violation["rule"])

    def test_more_dimensions_than_allowed_are_refused_with_the_common_ones(self):
        body = {"dimensions": {f"a{n}": "v" for n in range(60)}, "logs": [{"message": "a"}]}
        self.assertEqual(204, self.post(LOGS, body).status_code)
        body["logs"].append({"message": "b", "dimensions": {f"b{n}": "v" for n in range(41)}})
        answer = self.post(LOGS, body)
        (violation,) = answer.json["error"]["violations"]
        self.assertEqual((422, "logs[1].dimensions"), (answer.status_code, violation["where"]))
        self.assertIn("has 101 entries: at most 100 are allowed", violation["rule"])

    def test_a_post_without_logs_is_unprocessable(self):
        for body in ({"dimensions": {}}, {"logs": None}, {}):
            self.assertEqual(422, self.post(LOGS, body).status_code, body)

    def test_an_empty_body_and_a_missing_type_are_bad_requests(self):
        self.assertEqual(400, self.post(LOGS, b"").status_code)
        self.assertEqual(400, self.post(LOGS, {"logs": [{"message": "a"}]}, {"Content-Type": ""}).status_code)

    def test_a_message_that_is_too_large_is_refused(self):
        answer = self.post(LOGS, {"logs": [{"message": "a"}, {"message": "x" * (1024 * 1024 + 1)}]})
        self.assertEqual((413, 413), (answer.status_code, answer.json["error"]["code"]))
        (violation,) = answer.json["error"]["violations"]
        self.assertEqual("logs[1].message", violation["where"])
        self.assertEqual([], self.records("log"))

    def test_another_content_type_is_refused(self):
        self.assertEqual(415, self.post(LOGS, b"a line", {"Content-Type": "text/plain"}).status_code)
