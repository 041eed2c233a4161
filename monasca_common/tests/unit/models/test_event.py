# SPDX-License-Identifier: Apache-2.0
import json

from hypothesis import given
from oslotest import base

from monasca_common.models import event
from monasca_common.models.errors import InvalidEnvelope, Unreadable
from monasca_common.tests.unit.models import hostile

START = {"event_type": "compute.instance.create.start", "payload": {"vcpus": 2}}


def body(*events, **rest):
    return json.dumps({"events": events} | rest).encode()


class TestEventPost(base.BaseTestCase):
    def test_the_public_apis_example_is_accepted(self):
        posted = event.parse_post(
            body({"dimensions": {"service": "compute"}, "event": START}, timestamp="2012-10-29T13:42:11Z+0200")
        )
        expected = START | {"dimensions": {"service": "compute"}, "timestamp": 1351510931000}
        self.assertEqual([expected], [json.loads(text) for text in posted.valid])

    def test_the_time_of_an_event_overrides_the_time_of_the_bulk(self):
        posted = event.parse_post(body({"event": START | {"timestamp": 7}}, {"event": START}, timestamp=5))
        self.assertEqual([7, 5], [json.loads(text)["timestamp"] for text in posted.valid])

    def test_violations_have_their_place_in_the_bulk(self):
        posted = event.parse_post(
            body({"event": START}, {}, {"event": {"event_type": "", "payload": 5}, "dimensions": {"_k": "v"}})
        )
        self.assertEqual([0], posted.indices)
        self.assertEqual(
            ["events[1].event", "events[2].event.event_type", "events[2].event.payload", "events[2].dimensions._k"],
            [violation.where for violation in posted.violations],
        )

    def test_missing_events_and_invalid_json_are_violations(self):
        for text, place in ((b"{}", "events"), (b'{"events":[]}', "events"), (b'{"events":5}', "events"), (b"[]", "")):
            error = self.assertRaises(InvalidEnvelope, event.parse_post, text)
            self.assertNotIsInstance(error, Unreadable)
            self.assertEqual(place, error.violations[0].where)
        self.assertRaises(Unreadable, event.parse_post, b"{")

    def test_an_invalid_time_of_the_bulk_refuses_all_events(self):
        error = self.assertRaises(InvalidEnvelope, event.parse_post, body({"event": START}, timestamp="yesterday"))
        self.assertEqual("timestamp", error.violations[0].where)

    def test_a_payload_that_databases_cannot_store_is_refused(self):
        for payload in ({"a": "\0"}, {"\0": 1}, json.loads('{"a":' * 70 + "1" + "}" * 70), {"a": "\ud800"}):
            with self.subTest(ascii(payload)[:20]):
                self.assertEqual(1, len(event.parse_post(body({"event": START | {"payload": payload}})).rejected))


class TestEventDecode(base.BaseTestCase):
    def test_a_posted_event_becomes_a_row(self):
        (text,) = event.parse_post(body({"dimensions": {"b": "1", "a": "2"}, "event": START}, timestamp=5)).valid
        decoded = event.decode_all(event.envelopes([text], "p", "r", 9))
        self.assertEqual([(5, "p", START["event_type"], '{"vcpus":2}', '{"a":"2","b":"1"}')], decoded.rows)

    def test_an_event_without_a_time_has_the_time_of_its_envelope(self):
        (text,) = event.parse_post(body({"event": START})).valid
        (timed,) = event.parse_post(body({"event": START}, timestamp=5)).valid
        decoded = event.decode_all(event.envelopes([timed, text], "p", "r", 9))
        self.assertEqual([5, 9000], [row.time_ms for row in decoded.rows])
        self.assertEqual({1}, decoded.untimed)

    def test_an_event_without_a_project_is_refused(self):
        value = json.dumps({"event": START, "meta": {}, "creation_time": 5}).encode()
        error = event.decode_all([value]).errors[0]
        self.assertEqual(["meta.project_id"], [violation.where for violation in error.violations])

    def test_a_long_number_keeps_all_its_digits(self):
        (text,) = event.parse_post(body({"event": START | {"payload": {"n": 10**30}}})).valid
        self.assertEqual(f'{{"n":{10**30}}}', event.decode_all(event.envelopes([text], "p", "r", 9)).rows[0].payload)

    @given(hostile.members("event_type", "payload", "timestamp"), hostile.TEXTS, hostile.TEXTS)
    def test_each_accepted_element_can_be_stored(self, one, dimensions, timestamp):
        try:
            posted = event.parse_post(
                b'{"timestamp":%b,"events":[{"event":%b,"dimensions":%b}]}' % (timestamp, one, dimensions)
            )
        except InvalidEnvelope:
            return
        self.assertEqual(1, len(posted.valid) + len(posted.rejected))
        decoded = event.decode_all(event.envelopes(posted.valid, "p", "r", 5))
        self.assertEqual({}, decoded.errors)
        for row in decoded.rows:
            self.assertTrue(0 <= row.time_ms < 2**63)
            json.loads(row.payload)
