# SPDX-License-Identifier: Apache-2.0
from prometheus_client.parser import text_string_to_metric_families

from monasca_common.tests.unit.api.api_case import ApiCase, metric


class TestPage(ApiCase):
    def samples(self, client=None):
        """Return the values by metric name and label values, ordered by label name."""
        answer = (client or self.client).simulate_get("/metrics")
        self.assertEqual(200, answer.status_code)
        self.assertTrue(answer.headers["content-type"].startswith("text/plain; version=0.0.4"))
        return {
            (
                sample.name.removeprefix("monasca_api_"),
                *(value for _, value in sorted(sample.labels.items())),
            ): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def test_metrics_contain_the_completed_requests_until_now(self):
        self.post("/v2.0/metrics", [metric(), metric()])
        self.post("/v2.0/metrics", [metric(name="")])
        self.post("/v2.0/logs", {"logs": [{"message": "a"}]})
        self.client.simulate_get("/v2.0/alarms/a-secret/state-history")
        found = self.samples()
        for expected in (
            {("requests_total", "POST", "/v2.0/metrics", "204"): 1, ("requests_total", "POST", "/v2.0/logs", "204"): 1},
            {("requests_total", "GET", "/v2.0/alarms/{alarm_id}/state-history", "501"): 1},
            {("request_seconds_count", "POST", "/v2.0/metrics"): 2},
            {("messages_total", "metrics", "delivered"): 2, ("messages_total", "logs", "delivered"): 1},
            {("refused_total", "invalid"): 1, ("refused_total", "not_supported"): 1},
            {("unacknowledged_messages", "log"): 0, ("oldest_unacknowledged_seconds", "log"): 0},
            {("requests_in_flight",): 1},  # the request of the scrape itself
        ):
            self.assertEqual(expected, {key: found.get(key) for key in expected})
        self.assertEqual(1, self.samples()["requests_total", "GET", "/metrics", "200"])

    def test_metrics_requests_get_a_response_without_a_slot(self):
        limited = self.client.app._app
        for _ in range(96):
            limited._posts.pop()
        self.assertEqual(503, self.post("/v2.0/metrics", metric()).status_code)
        self.assertEqual(1, self.samples()["refused_total", "busy"])
