# SPDX-License-Identifier: Apache-2.0
from monasca_common.api.query import iso
from monasca_common.tests.unit.api.api_case import NOW_MS, ApiCase

EVENTS = "/v1.0/events"


class TestEvents(ApiCase):
    def test_each_event_is_a_message(self):
        event = {"event_type": "compute.instance.create", "payload": {"a": 1}}
        body = {"timestamp": iso(NOW_MS), "events": [{"dimensions": {"s": "x"}, "event": event}]}
        self.assertEqual(200, self.post(EVENTS, body).status_code)
        (envelope,) = self.values("monevents")
        self.assertEqual("compute.instance.create", envelope["event"]["event_type"])
        self.assertEqual({"project_id": "t1"}, envelope["meta"])

    def test_a_post_without_events_is_unprocessable(self):
        for body in (b"", b"{}", b'{"events": []}', b'{"timestamp": "2026-01-31T06:00:00Z"}'):
            self.assertEqual(422, self.post(EVENTS, body).status_code, body)

    def test_a_time_outside_the_limits_of_storage_is_refused(self):
        event, early = {"event_type": "compute.instance.create"}, iso(NOW_MS - 46 * 86_400_000)
        for body, place in (
            ({"timestamp": early, "events": [{"event": event}]}, "timestamp"),
            ({"events": [{"event": {**event, "timestamp": early}}]}, "events[0].event.timestamp"),
        ):
            answer = self.post(EVENTS, body)
            (violation,) = answer.json["error"]["violations"]
            self.assertEqual((422, place), (answer.status_code, violation["where"]))
        self.assertEqual([], self.records("monevents"))

    def test_more_dimensions_than_allowed_are_refused(self):
        dimensions = {f"k{n}": "v" for n in range(101)}
        body = {"events": [{"event": {"event_type": "a"}, "dimensions": dimensions}]}
        answer = self.post(EVENTS, body)
        self.assertEqual(
            (422, "events[0].dimensions"), (answer.status_code, answer.json["error"]["violations"][0]["where"])
        )
