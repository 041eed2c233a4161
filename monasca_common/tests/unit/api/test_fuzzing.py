# SPDX-License-Identifier: Apache-2.0
"""Any request gets a response from the API, and status 204 only if its messages are in Kafka."""

import gzip
import json
from urllib.parse import quote

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from monasca_common.tests.unit.api.api_case import NOW_MS, ApiCase, metric

ANSWERS = {200, 204, 400, 408, 413, 415, 422, 429, 501}
FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
)

LEAVES = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=True, allow_infinity=True)
    | some.text(max_size=300)
    | some.sampled_from(["NaN", "2026-01-31T06:00:00Z", "", " ", "\ud800", "é\u0000", "a" * 256])
)
ANYTHING = some.recursive(LEAVES, lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner), max_leaves=8)
WORDS = some.text(some.characters(exclude_characters='<>={},"\\;& ()_', exclude_categories=["Cs", "Cc"]), min_size=1)
GOOD_METRICS = some.fixed_dictionaries(
    {
        "name": WORDS,
        "timestamp": some.integers(NOW_MS - 10**9, NOW_MS + 10**7) | some.floats(NOW_MS - 1e9, NOW_MS + 1e7),
        "value": some.floats(allow_nan=False, allow_infinity=False) | some.integers(-(2**53), 2**53),
    },
    optional={
        "dimensions": some.dictionaries(WORDS, WORDS, max_size=3),
        "value_meta": some.none() | some.dictionaries(WORDS, some.text(max_size=20), max_size=3),
        "tenant_id": LEAVES,
    },
)
GOOD_LOGS = some.fixed_dictionaries({"message": some.text()}, optional={"dimensions": some.dictionaries(WORDS, WORDS)})
GOOD_EVENTS = some.fixed_dictionaries(
    {"event": some.fixed_dictionaries({"event_type": WORDS}, optional={"payload": some.dictionaries(WORDS, LEAVES)})},
    optional={"dimensions": some.dictionaries(WORDS, WORDS)},
)


def nearly(good):
    """Generate documents with one member changed or added."""
    names = some.sampled_from(["name", "timestamp", "value", "dimensions", "value_meta", "message", "event"])
    return some.builds(lambda made, name, value: {**made, name: value}, good, names | some.text(max_size=3), ANYTHING)


METRICS = GOOD_METRICS | nearly(GOOD_METRICS)
LOGS = some.fixed_dictionaries({"logs": some.lists(GOOD_LOGS | nearly(GOOD_LOGS), min_size=1, max_size=3)})
EVENTS = some.fixed_dictionaries({"events": some.lists(GOOD_EVENTS | nearly(GOOD_EVENTS), min_size=1, max_size=3)})
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
        """Check that a request is accepted completely or refused."""
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
    def test_random_bytes_have_a_valid_response(self, path, body):
        self.assert_answered(self.post(path, body))

    @FUZZED
    @given(PATHS, ANYTHING)
    def test_random_json_has_a_valid_response(self, path, body):
        self.assert_answered(self.post(path, text_of(body)))

    @FUZZED
    @given(LOGS | nearly(LOGS))
    def test_random_logs_are_accepted_completely_or_refused(self, body):
        self.assert_answered(self.post("/v2.0/logs", text_of(body)))

    @FUZZED
    @given(EVENTS | nearly(EVENTS))
    def test_random_events_are_accepted_completely_or_refused(self, body):
        self.assert_answered(self.post("/v1.0/events", text_of(body)))

    @FUZZED
    @given(some.lists(METRICS, max_size=3))
    @example([])
    @example([metric(value=float("nan"))])
    @example([metric(timestamp=2**63)])
    @example([metric(dimensions={"a": "\ud800"})])
    def test_random_metrics_are_accepted_completely_or_refused(self, body):
        before = self.count()
        answer = self.post("/v2.0/metrics", text_of(body))
        self.assert_answered(answer)
        self.assert_told_the_truth(before, answer, body)

    @FUZZED
    @given(some.lists(METRICS, max_size=3))
    @example([metric(value=float("nan"))])
    @example([{"a": "\ud800"}, metric()])
    def test_random_metrics_with_drop_are_accepted_completely_or_dead_lettered(self, body):
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
    def test_random_headers_have_a_valid_response(self, name, value):
        self.assert_answered(self.post("/v2.0/metrics", metric(), {name: value}))

    @FUZZED
    @given(some.binary(max_size=60), some.integers(0, 100))
    def test_random_gzip_has_a_valid_response(self, noise, cut):
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
    def test_random_parameters_have_a_valid_response(self, path, parameters):
        pairs = (
            f"{quote(name, errors='replace')}={quote(value, errors='replace')}" for name, value in parameters.items()
        )
        self.assert_answered(self.client.simulate_get("/v2.0/metrics" + path, query_string="&".join(pairs)))

    def setUp(self):
        super().setUp()
        self.dropping = self.new_client(invalid_metrics="drop")
