# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent: an answer of the API's own, and 204 only for what is in Kafka."""

import gzip
import json
from urllib.parse import quote

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from monasca_common.tests.unit.api.api_case import ApiCase, metric

ANSWERS = {200, 204, 400, 408, 413, 415, 422, 429, 501}
FUZZED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.differing_executors])

LEAVES = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=True, allow_infinity=True)
    | some.text(max_size=300)
    | some.sampled_from(["NaN", "2026-01-31T06:00:00Z", "", " ", "\ud800", "é\u0000", "a" * 256])
)
ANYTHING = some.recursive(LEAVES, lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner), max_leaves=8)
METRICS = some.fixed_dictionaries(
    {},
    optional={
        "name": some.sampled_from(["cpu", "température", "a b", ""]) | LEAVES,
        "dimensions": some.dictionaries(some.text(max_size=260), some.text(max_size=260), max_size=3) | ANYTHING,
        "timestamp": some.integers(-1, 2**70) | some.floats() | LEAVES,
        "value": some.floats() | LEAVES,
        "value_meta": some.dictionaries(some.text(), some.text(), max_size=20) | ANYTHING,
        "tenant_id": LEAVES,
    },
)
LOGS = some.fixed_dictionaries({}, optional={"dimensions": ANYTHING, "logs": some.lists(ANYTHING) | ANYTHING})
EVENTS = some.fixed_dictionaries({}, optional={"timestamp": LEAVES, "events": some.lists(ANYTHING) | ANYTHING})
PATHS = some.sampled_from(["/v2.0/metrics", "/v2.0/logs", "/v1.0/events"])


def text_of(body):
    return json.dumps(body).encode("utf-8", "surrogatepass")


class TestFuzzing(ApiCase):
    settings = {"invalid_metrics": "refuse"}  # noqa: RUF012

    def assert_answered(self, answer):
        self.assertIn(answer.status_code, ANSWERS, answer.text)
        if answer.status_code >= 400:
            error = answer.json["error"]
            self.assertEqual(answer.status_code, error["code"])
            self.assertTrue(error["title"] and error["message"])

    def count(self):
        return sum(len(self.records(topic)) for topic in ("metrics", "metrics.dlq", "log", "monevents"))

    def assert_told_the_truth(self, before, answer, body):
        """Taken whole or not at all, where nothing is dropped."""
        taken = self.count() - before
        if answer.status_code >= 400:
            self.assertEqual(0, taken)
        elif isinstance(body, list):
            self.assertEqual(len(body), taken)

    @FUZZED
    @given(PATHS, some.binary(max_size=200) | some.text(max_size=100).map(lambda text: text.encode()))
    @example("/v2.0/metrics", b"\xef\xbb\xbf{}")
    @example("/v2.0/metrics", b"[" * 100_000)
    @example("/v2.0/logs", b'{"logs":' + b"[" * 5000 + b"]" * 5000 + b"}")
    @example("/v2.0/metrics", b'{"name":"a","timestamp":1e400,"value":1}')
    def test_bytes(self, path, body):
        self.assert_answered(self.post(path, body))

    @FUZZED
    @given(PATHS, ANYTHING | METRICS | LOGS | EVENTS)
    def test_json(self, path, body):
        self.assert_answered(self.post(path, text_of(body)))

    @FUZZED
    @given(some.lists(METRICS | some.just(metric()), max_size=4))
    @example([])
    @example([metric(value=float("nan"))])
    @example([metric(timestamp=2**63)])
    @example([metric(dimensions={"a": "\ud800"})])
    def test_metrics(self, body):
        before = self.count()
        answer = self.post("/v2.0/metrics", text_of(body))
        self.assert_answered(answer)
        self.assert_told_the_truth(before, answer, body)

    @FUZZED
    @given(some.lists(METRICS | some.just(metric()), max_size=4))
    @example([metric(value=float("nan"))])
    @example([{"a": "\ud800"}, metric()])
    def test_metrics_of_which_the_bad_are_dropped(self, body):
        before = self.count()
        answer = self.post("/v2.0/metrics", text_of(body), client=self.dropping)
        self.assert_answered(answer)
        self.assert_told_the_truth(before, answer, body)

    @FUZZED
    @given(
        some.sampled_from(["Content-Type", "Content-Encoding", "Idempotency-Key", "X-Project-Id", "Accept"]),
        some.text(some.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=300),
    )
    @example("Content-Type", "application/json; charset=\x80")
    @example("X-Project-Id", "\x00")
    @example("Accept", "text/xml")
    def test_headers(self, name, value):
        self.assert_answered(self.post("/v2.0/metrics", metric(), {name: value}))

    @FUZZED
    @given(some.binary(max_size=60), some.integers(0, 100))
    def test_gzip(self, noise, cut):
        whole = gzip.compress(text_of(metric()))
        self.assert_answered(self.post("/v2.0/metrics", whole[:cut] + noise, {"Content-Encoding": "gzip"}))

    @FUZZED
    @given(
        some.sampled_from(
            ["", "/names", "/measurements", "/statistics", "/dimensions/names", "/dimensions/names/values"]
        ),
        some.dictionaries(
            some.sampled_from(
                [
                    "name",
                    "dimensions",
                    "dimension_name",
                    "start_time",
                    "end_time",
                    "limit",
                    "offset",
                    "group_by",
                    "merge_metrics",
                    "statistics",
                    "period",
                    "tenant_id",
                ]
            )
            | some.text(max_size=5),
            some.sampled_from(["a", "cpu.idle", "k:v|w,x", "2026-01-31T06:00:00Z", "-1", "10", "true", "avg,max", "*"])
            | some.text(max_size=20),
        ),
    )
    @example("/statistics", {"name": "a", "start_time": "9" * 400, "statistics": "avg", "period": "9" * 400})
    @example("/measurements", {"name": "a", "start_time": "0001-01-01T00:00:00+23:59"})
    def test_parameters(self, path, parameters):
        pairs = (
            f"{quote(name, errors='replace')}={quote(value, errors='replace')}" for name, value in parameters.items()
        )
        self.assert_answered(self.client.simulate_get("/v2.0/metrics" + path, query_string="&".join(pairs)))

    def setUp(self):
        super().setUp()
        self.dropping = self.new_client(invalid_metrics="drop")
