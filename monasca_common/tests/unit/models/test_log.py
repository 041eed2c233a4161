# SPDX-License-Identifier: Apache-2.0
import json

from hypothesis import given
from oslotest import base

from monasca_common.models import log
from monasca_common.models.errors import InvalidEnvelope, Unreadable
from monasca_common.tests.unit.models import hostile


def body(*logs, dimensions=None):
    return json.dumps({"dimensions": dimensions or {}, "logs": logs}).encode()


def message(entry, *, created=5, meta=None):
    meta = {"tenantId": "t", "region": "r"} if meta is None else meta
    return json.dumps({"log": entry, "meta": meta, "creation_time": created}).encode()


class TestLogPost(base.BaseTestCase):
    def test_a_logs_dimensions_override_common_ones(self):
        posted = log.parse_post(
            body({"message": "a"}, {"message": "b", "dimensions": {"host": "own"}}, dimensions={"host": "h", "s": "x"})
        )
        self.assertEqual(
            [{"host": "h", "s": "x"}, {"host": "own", "s": "x"}],
            [json.loads(text)["dimensions"] for text in posted.valid],
        )

    def test_other_members_are_unchanged(self):
        (text,) = log.parse_post(body({"message": "a", "from": "hoover", "deep": {"x": [1, None]}})).valid
        self.assertEqual(
            {"message": "a", "dimensions": {}, "from": "hoover", "deep": {"x": [1, None]}}, json.loads(text)
        )

    def test_a_timestamp_is_converted_to_ms(self):
        posted = log.parse_post(
            body({"message": "a", "timestamp": "1970-01-01T00:00:05Z"}, {"message": "a", "timestamp": 5.5})
        )
        self.assertEqual([5000, 5], [json.loads(text)["timestamp"] for text in posted.valid])

    def test_violations_have_their_place_in_the_bulk(self):
        posted = log.parse_post(body({"message": "a"}, {}, {"message": 5, "timestamp": "x", "dimensions": {"_a": "<"}}))
        self.assertEqual([0], posted.indices)
        self.assertEqual(
            [
                "logs[1].message",
                "logs[2].message",
                "logs[2].timestamp",
                "logs[2].dimensions._a",
                "logs[2].dimensions._a",
            ],
            sorted(
                (violation.where for violation in posted.violations), key=lambda where: (where[:7], "d" in where[7:9])
            ),
        )

    def test_a_message_is_limited_in_bytes(self):
        longest = "é" * (512 * 1024)
        self.assertEqual((), log.parse_post(body({"message": longest})).violations)
        self.assertEqual(1, len(log.parse_post(body({"message": longest + "x"})).violations))

    def test_missing_logs_and_invalid_json_are_distinguished(self):
        for text, place in (
            (b"{}", "logs"),
            (b'{"logs":null}', "logs"),
            (b'{"logs":{}}', "logs"),
            (b"[]", ""),
            (b"5", ""),
        ):
            error = self.assertRaises(InvalidEnvelope, log.parse_post, text)
            self.assertNotIsInstance(error, Unreadable)
            self.assertEqual(place, error.violations[0].where)
        for text in (b"", b"{", b"hello", b"\xff"):
            self.assertRaises(Unreadable, log.parse_post, text)

    def test_common_dimensions_that_many_logs_repeat_are_too_large(self):
        common = {f"key{number}": "x" * 255 for number in range(100)}
        body = {"dimensions": common, "logs": [{"message": "a"}] * 1000}
        error = self.assertRaises(InvalidEnvelope, log.parse_post, json.dumps(body).encode())
        self.assertTrue(error.violations[0].too_large)
        self.assertIn("bytes, which 1000 logs repeat: send fewer of them at a time", str(error))

    def test_invalid_common_dimensions_refuse_all_logs(self):
        error = self.assertRaises(InvalidEnvelope, log.parse_post, body({"message": "a"}, dimensions={"k": ""}))
        self.assertEqual("dimensions.k", error.violations[0].where)

    def test_values_that_databases_cannot_store_are_refused_anywhere(self):
        deep = json.loads("[" * 70 + "]" * 70)
        for entry in (
            {"message": "\0"},
            {"x": "\0"},
            {"x": {"\0": 1}},
            {"x": deep},
            {"x": "\ud800"},
            {"x": float("nan")},
        ):
            with self.subTest(ascii(entry)[:40]):
                posted = log.parse_post(body({"message": "a"}, {"message": "a"} | entry))
                self.assertEqual([0], posted.indices)


class TestLogDecode(base.BaseTestCase):
    def test_a_posted_log_becomes_a_row(self):
        (text,) = log.parse_post(body({"message": "é", "dimensions": {"b": "1", "a": "2"}, "level": 3})).valid
        decoded = log.decode_all(log.envelopes([text], "t", "r", 5))
        self.assertEqual([(5000, "t", "r", "é", '{"a":"2","b":"1"}', '{"level":3}')], decoded.rows)

    def test_the_time_of_a_log_overrides_that_of_its_envelope(self):
        rows = log.decode_all(
            [message({"message": "a", "timestamp": 7.9}), message({"message": "a"}, created=1.25)]
        ).rows
        self.assertEqual([7, 1250], [row.time_ms for row in rows])

    def test_logs_without_their_own_time_are_listed_as_untimed(self):
        timed, untimed = message({"message": "a", "timestamp": 5}), message({"message": "a"})
        self.assertEqual({0, 2}, log.decode_all([untimed, b"{", timed, untimed]).untimed)

    def test_without_any_time_a_log_is_refused(self):
        error = log.decode_all([message({"message": "a"}, created=None)]).errors[0]
        self.assertEqual(["creation_time"], [violation.where for violation in error.violations])

    def test_all_violations_of_a_message_are_listed(self):
        decoded = log.decode_all([message({"message": 5, "dimensions": []}, created="x", meta={"tenantId": ""}), b"{}"])
        self.assertEqual(
            [{"meta.tenantId", "creation_time", "log.message", "log.dimensions"}, {"log", "meta", "creation_time"}],
            [{violation.where for violation in error.violations} for error in decoded.errors.values()],
        )

    @given(hostile.members("message", "dimensions", "timestamp", "x"), hostile.members("tenantId", "region"))
    def test_any_value_is_a_row_or_an_error(self, entry, meta):
        decoded = log.decode_all([b'{"log":%b,"meta":%b,"creation_time":5}' % (entry, meta)])
        self.assertEqual(1, len(decoded.rows) + len(decoded.errors))
        for row in decoded.rows:
            self.assertTrue(0 <= row.time_ms < 2**63)
            self.assertNotIn("\0", row.message + str(json.loads(row.dimensions)))
            json.loads(row.fields)

    @given(hostile.members("message", "dimensions", "timestamp", "x"), hostile.TEXTS)
    def test_each_accepted_element_can_be_stored(self, entry, common):
        try:
            posted = log.parse_post(b'{"dimensions":%b,"logs":[%b]}' % (common, entry))
        except InvalidEnvelope:
            return
        self.assertEqual(1, len(posted.valid) + len(posted.rejected))
        self.assertEqual({}, log.decode_all(log.envelopes(posted.valid, "t", "r", 5)).errors)
