# SPDX-License-Identifier: Apache-2.0
import json
from urllib.parse import parse_qsl, urlsplit

from monasca_common.api.query import iso
from monasca_common.kafka.transport.memory.injection import Fail
from monasca_common.models.metric import MetricDecoder
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import RowLimits
from monasca_common.tests.unit.api.api_case import NOW_MS, ApiCase, metric, uuid_7
from monasca_common.tests.unit.api.reads_case import BASE_MS, ReadsCase

_DAY_MS = 86_400_000
_METRICS, _NAMES = "/v2.0/metrics", "/v2.0/metrics/names"
_DIMENSIONS, _VALUES = "/v2.0/metrics/dimensions/names", "/v2.0/metrics/dimensions/names/values"


class TestPosts(ApiCase):
    def test_a_metric_is_in_kafka_when_its_post_gets_a_response(self):
        answer = self.post(_METRICS, metric(value_meta={"rc": "0"}))
        self.assertEqual((204, b""), (answer.status_code, answer.content))
        (envelope,) = self.values()
        self.assertEqual(metric(value_meta={"rc": "0"}), envelope["metric"])
        self.assertEqual({"tenantId": "t1", "region": "RegionOne"}, envelope["meta"])
        self.assertEqual(NOW_MS / 1000, envelope["creation_time"])

    def test_the_later_of_two_corrections_within_a_second_is_stored(self):
        for now, value in ((1_790_000_000.001, 7), (1_790_000_000.999, 3)):
            self.post(_METRICS, metric(value=value), client=self.new_client(now=lambda now=now: now))
        rows = MetricDecoder().decode_all([record.value for record in self.records()]).rows
        self.assertEqual(3, max(rows, key=lambda row: (row.version, row.value)).value)
        self.assertEqual({1_790_000_000_001, 1_790_000_000_999}, {row.version for row in rows})

    def test_a_list_has_a_message_per_metric(self):
        self.assertEqual(204, self.post(_METRICS, [metric("a"), metric("b")]).status_code)
        self.assertEqual(["a", "b"], sorted(value["metric"]["name"] for value in self.values()))

    def test_a_float_timestamp_is_floored(self):
        self.post(_METRICS, metric(timestamp=NOW_MS + 0.9))
        self.assertEqual(NOW_MS, self.values()[0]["metric"]["timestamp"])

    def test_multibyte_names_are_unchanged(self):
        self.post(_METRICS, metric("température.été", dimensions={"ort": "Zürich 東京 🌡"}))
        self.assertEqual("température.été", self.values()[0]["metric"]["name"])
        self.assertEqual({"ort": "Zürich 東京 🌡"}, self.values()[0]["metric"]["dimensions"])

    def test_messages_have_no_key_so_that_one_tenant_spreads_over_partitions(self):
        self.post(_METRICS, metric())
        self.assertIsNone(self.records()[0].key)

    def test_a_body_cannot_name_its_tenant(self):
        self.post(_METRICS, metric(tenant_id="t2", tenantId="t2", meta={"tenantId": "t2"}))
        self.assertEqual("t1", self.values()[0]["meta"]["tenantId"])
        self.assertNotIn("t2", self.records()[0].value.decode())

    def test_a_refusal_lists_all_violations_with_their_places(self):
        answer = self.post(_METRICS, [metric(), metric("a b", value=None), metric(dimensions={"_x": ""})])
        self.assertEqual(422, answer.status_code)
        places = [violation["where"] for violation in answer.json["error"]["violations"]]
        self.assertEqual({"[1].name", "[1].value"}, {place for place in places if place.startswith("[1]")})
        self.assertTrue(any(place.startswith("[2].dimensions") for place in places))
        self.assertIn("[1].name", answer.json["error"]["message"])
        self.assertEqual([], self.records())

    def test_a_value_that_is_not_a_number_is_refused(self):
        for text in (b"NaN", b"Infinity", b"1e999", b"null", b'"1"', b"true"):
            body = b'{"name": "a", "timestamp": %d, "value": %b}' % (NOW_MS, text)
            self.assertIn(self.post(_METRICS, body).status_code, (400, 422), text)
        self.assertEqual([], self.records())

    def test_a_time_outside_the_limits_of_storage_is_refused(self):
        seconds, early, late = NOW_MS // 1000, NOW_MS - 46 * _DAY_MS, NOW_MS + 2 * _DAY_MS
        answer = self.post(
            _METRICS, [metric(), metric(timestamp=seconds), metric(timestamp=early), metric(timestamp=late)]
        )
        self.assertEqual(422, answer.status_code)
        rules = {each["where"]: each["rule"] for each in answer.json["error"]["violations"]}
        self.assertEqual({"[1].timestamp", "[2].timestamp", "[3].timestamp"}, set(rules))
        self.assertIn("older than the retention", rules["[1].timestamp"])
        self.assertIn("it appears to be in seconds: send milliseconds", rules["[1].timestamp"])
        self.assertIn("older than the retention: the earliest allowed time is 2026-08-07", rules["[2].timestamp"])
        self.assertIn("in the future: the latest allowed time is 2026-09-22", rules["[3].timestamp"])
        self.assertEqual([], self.records())

    def test_times_are_checked_by_the_limits_of_storage(self):
        limits = RowLimits(retention_days={Kind.METRICS: 100, Kind.LOGS: 1}, future_tolerance_seconds=30 * 86_400)
        client = self.new_client(limits=limits)
        for timestamp, expected in (
            (NOW_MS - 100 * _DAY_MS, 204),
            (NOW_MS - 100 * _DAY_MS - 1, 422),
            (NOW_MS + 30 * _DAY_MS + 0.9, 204),
            (NOW_MS + 30 * _DAY_MS + 1, 422),
        ):
            self.assertEqual(expected, self.post(_METRICS, metric(timestamp=timestamp), client=client).status_code)

    def test_a_repeat_is_checked_as_of_the_time_of_its_key(self):
        headers = {"Idempotency-Key": uuid_7(NOW_MS)}
        oldest = metric(timestamp=NOW_MS - 45 * _DAY_MS)
        for now_ms in (NOW_MS, NOW_MS + 5000):
            client = self.new_client(now=lambda now_ms=now_ms: now_ms / 1000)
            self.assertEqual(204, self.post(_METRICS, oldest, headers, client=client).status_code)
        self.assertEqual(422, self.post(_METRICS, oldest, client=client).status_code)

    def test_more_dimensions_than_allowed_are_refused_with_the_limit(self):
        many = {f"k{n}": "v" for n in range(101)}
        answer = self.post(_METRICS, [metric(), metric(dimensions=many)])
        (violation,) = answer.json["error"]["violations"]
        self.assertEqual((422, "[1].dimensions"), (answer.status_code, violation["where"]))
        self.assertEqual("has 101 entries: at most 100 are allowed", violation["rule"])
        client = self.new_client(limits=RowLimits(max_dimensions=101))
        self.assertEqual(204, self.post(_METRICS, metric(dimensions=many), client=client).status_code)
        self.assertEqual(422, self.post(_METRICS, metric(dimensions=many)).status_code)

    def test_a_name_reserved_by_the_database_is_refused(self):
        client = self.new_client(limits=RowLimits(reserved_names=frozenset({"alarm_state_history"})))
        answer = self.post(_METRICS, [metric(), metric("alarm_state_history")], client=client)
        self.assertEqual(422, answer.status_code)
        (violation,) = answer.json["error"]["violations"]
        self.assertEqual("[1].name", violation["where"])
        self.assertIn("is alarm_state_history, which the database reserves for its own rows", violation["rule"])
        self.assertEqual([], self.records())
        for body in (metric("alarm_state_history.x"), metric("Alarm_state_history")):
            self.assertEqual(204, self.post(_METRICS, body, client=client).status_code)
        self.assertEqual(204, self.post(_METRICS, metric("alarm_state_history")).status_code)
        self.assertEqual(422, self.post(_METRICS, metric("alarm_state_history"), client=client).status_code)

    def test_invalid_json_is_a_bad_request(self):
        for body in (b"", b"{", b"nope", b"\xff\xfe", b"[1,"):
            answer = self.post(_METRICS, body)
            self.assertEqual((400, 400), (answer.status_code, answer.json["error"]["code"]), body)

    def test_json_that_is_not_a_metric_is_unprocessable(self):
        for body in (b"1", b'"a"', b"null", b"[1]", b"{}", b"[[]]"):
            self.assertEqual(422, self.post(_METRICS, body).status_code, body)


class TestDropping(ApiCase):
    settings = {"invalid_metrics": "drop"}  # noqa: RUF012

    def test_valid_metrics_are_accepted_and_invalid_ones_are_dead_lettered_and_counted(self):
        bad = metric("a b")
        answer = self.post(_METRICS, [metric("a"), bad, metric("c")])
        self.assertEqual((204, "1"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual(["a", "c"], sorted(value["metric"]["name"] for value in self.values()))
        (letter,) = self.records("metrics.dlq")
        self.assertEqual(bad, json.loads(letter.value)["metric"])
        self.assertEqual("t1", json.loads(letter.value)["meta"]["tenantId"])
        headers = dict(letter.headers)
        self.assertIn(b"[1].name", headers["dead-letter-error-text"])
        self.assertEqual(b"metrics", headers["dead-letter-origin-topic"])

    def test_a_time_outside_the_limits_of_storage_is_rejected(self):
        answer = self.post(_METRICS, [metric("a"), metric("b", timestamp=NOW_MS // 1000)])
        self.assertEqual((204, "1"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual(["a"], [value["metric"]["name"] for value in self.values()])
        (letter,) = self.records("metrics.dlq")
        self.assertIn(b"older than the retention", dict(letter.headers)["dead-letter-error-text"])

    def test_a_name_reserved_by_the_database_is_rejected(self):
        client = self.new_client(limits=RowLimits(reserved_names=frozenset({"alarm_state_history"})))
        answer = self.post(_METRICS, [metric("a"), metric("alarm_state_history")], client=client)
        self.assertEqual((204, "1"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual(["a"], [value["metric"]["name"] for value in self.values()])
        (letter,) = self.records("metrics.dlq")
        self.assertIn(b"[1].name is alarm_state_history", dict(letter.headers)["dead-letter-error-text"])

    def test_a_request_of_only_invalid_metrics_is_accepted(self):
        answer = self.post(_METRICS, [metric(""), metric("(")])
        self.assertEqual((204, "2"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual((0, 2), (len(self.records()), len(self.records("metrics.dlq"))))

    def test_without_rejected_metrics_the_header_is_missing(self):
        self.assertNotIn("Monasca-Rejected", self.post(_METRICS, metric()).headers)

    def test_an_unacknowledged_dead_letter_is_not_a_success(self):
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), topic="metrics.dlq")
        answer = self.post(_METRICS, [metric(), metric("(")])
        self.assertEqual(503, answer.status_code)
        self.assertEqual((1, 1), (answer.json["error"]["delivered"], answer.json["error"]["failed"]))

    def test_an_invalid_metric_too_large_for_the_dead_letter_topic_is_cut(self):
        answer = self.post(_METRICS, [metric("a"), metric("b" * 2**20), metric("(")])
        self.assertEqual((204, "2"), (answer.status_code, answer.headers["Monasca-Rejected"]))
        self.assertEqual(["a"], [value["metric"]["name"] for value in self.values()])
        small, cut = sorted(self.records("metrics.dlq"), key=lambda record: len(record.value))
        self.assertNotIn("dead-letter-value-cut-from", dict(small.headers))
        self.assertGreater(int(dict(cut.headers)["dead-letter-value-cut-from"]), 2**20)

    def test_invalid_json_is_refused_with_drop(self):
        self.assertEqual(400, self.post(_METRICS, b"[{").status_code)


class TestLists(ReadsCase):
    def test_a_metric_has_exactly_id_name_and_dimensions(self):
        (found,) = self.elements(_METRICS, name="mem")
        self.assertEqual({"id": self.mem.id.hex(), "name": "mem", "dimensions": {"host": "a", "bank": "0"}}, found)

    def test_metrics_are_filtered(self):
        def found(**parameters):
            return {one["id"] for one in self.elements(_METRICS, **parameters)}

        a, b, c = (one.id.hex() for one in self.cpu)
        self.assertEqual({a, b, c}, found(name="cpu"))
        self.assertEqual({a, c}, found(name="cpu", dimensions="host:a|c"))
        self.assertEqual({self.mem.id.hex()}, found(dimensions="host,bank"))
        self.assertEqual({a, b, c}, found(start_time=iso(BASE_MS + 1), end_time=iso(BASE_MS + 2000)))
        self.assertEqual(set(), found(tenant="other"))

    def test_a_complete_list_has_a_self_link_and_no_next_link(self):
        body = self.get(_METRICS, name="cpu", limit="3")
        (link,) = body["links"]
        self.assertEqual("self", link["rel"])
        self.assertEqual("http://falconframework.org/v2.0/metrics?name=cpu&limit=3", link["href"])

    def test_the_next_link_is_the_url_with_another_offset(self):
        first, second = self.get(_METRICS, dimensions="host", limit="2"), None
        (link,) = [link["href"] for link in first["links"] if link["rel"] == "next"]
        asked = dict(parse_qsl(urlsplit(link).query))
        self.assertEqual({"offset": first["elements"][-1]["id"], "dimensions": "host", "limit": "2"}, asked)
        second = self.get(_METRICS, **asked)
        (link,) = second["links"]
        self.assertEqual("self", link["rel"])
        self.assertEqual(4, len({one["id"] for one in first["elements"] + second["elements"]}))

    def test_pages_of_each_size_contain_each_element_once(self):
        for path, parameters in (
            (_METRICS, {}),
            (_NAMES, {}),
            (_DIMENSIONS, {}),
            (_VALUES, {"dimension_name": "host"}),
        ):
            whole = self.elements(path, **parameters)
            for limit in range(1, len(whole) + 1):
                pages = self.pages(path, limit=str(limit), **parameters)
                self.assertEqual(whole, [one for page in pages for one in page])
                self.assertEqual(-(-len(whole) // limit), len(pages))

    def test_names_are_sorted_and_may_be_filtered(self):
        self.assertEqual([{"name": "cpu"}, {"name": "mem"}], self.elements(_NAMES))
        self.assertEqual([{"name": "mem"}], self.elements(_NAMES, dimensions="bank:0"))
        self.assertEqual([{"name": "cpu"}], self.elements(_NAMES, start_time=iso(BASE_MS + 1)))
        self.assertEqual([{"name": "mem"}], self.elements(_NAMES, offset="d"))

    def test_dimension_names_and_values_of_all_metrics_or_of_one_are_listed(self):
        self.assertEqual(["bank", "host", "zone"], [one["dimension_name"] for one in self.elements(_DIMENSIONS)])
        self.assertEqual(
            [{"dimension_name": "bank"}, {"dimension_name": "host"}], self.elements(_DIMENSIONS, metric_name="mem")
        )
        self.assertEqual([{"dimension_value": "a"}], self.elements(_VALUES, metric_name="mem", dimension_name="host"))
        self.assertEqual(
            ["a", "b", "c"], [one["dimension_value"] for one in self.elements(_VALUES, dimension_name="host")]
        )

    def test_an_unknown_metric_returns_an_empty_list_of_dimensions(self):
        self.assertEqual([], self.elements(_DIMENSIONS, metric_name="none"))
        self.assertEqual([], self.elements(_VALUES, metric_name="none", dimension_name="host"))

    def test_a_missing_dimension_name_is_refused_in_the_clients_shape(self):
        body = self.get(_VALUES, 422)
        self.assertEqual({"error"}, set(body))
        self.assertEqual({"code", "title", "message"}, set(body["error"]))
        self.assertEqual((422, "Unprocessable Entity"), (body["error"]["code"], body["error"]["title"]))
        self.assertIn("dimension_name", body["error"]["message"])
