# SPDX-License-Identifier: Apache-2.0


import io
import json
from unittest import mock

import fixtures
from oslotest import base
from rich.console import Console

from monasca_common.alarms.expression import parse
from monasca_common.quickstart import alarm
from monasca_common.quickstart.services import ServiceFailed
from monasca_common.quickstart.webhook import LocalWebhook, ReceivedNotification, show
from monasca_common.tests.web import fetch

OK, ALARM = "2026-01-31T06:00:01.000Z", "2026-01-31T06:00:02.500Z"
HISTORY = [
    {"timestamp": OK, "old_state": "UNDETERMINED", "new_state": "OK"},
    {"timestamp": ALARM, "old_state": "OK", "new_state": "ALARM"},
]
MEASUREMENTS = [["2026-01-31T06:00:00.000Z", 0.0, {}], [OK, 1.0, {}], [ALARM, 99.0, {}]]


class FollowingApi:
    """An API whose alarm follows the load immediately. ``stuck``: the alarm never changes."""

    def __init__(self, load, posted, *, stuck=False):
        self.load, self.posted, self.stuck = load, posted, stuck
        self.history, self.posts = [], {}

    def post(self, path, content):
        self.posts[path] = content
        return {"id": f"id of {path}"}

    def get(self, path, **query):
        if path == "/v2.0/metrics/measurements":
            return [{"measurements": [[str(bulk.time_ms), 1.0, {}] for bulk in self.posted()]}]
        if path.endswith("/state-history"):
            return self.history
        if self.stuck and self.load.works:
            alarm._STATE_SECONDS = 0.0  # the time-out is over
        old = self.history[-1]["new_state"] if self.history else "UNDETERMINED"
        new = "OK" if self.stuck or not self.load.works else "ALARM"
        if new != old:
            self.history.append({"timestamp": str(len(self.history)), "old_state": old, "new_state": new})
        return [{"id": "the-alarm", "state": new}]


class StandInLoad:
    works = False

    def start(self):
        self.works = True

    def stop(self):
        self.works = False

    def percent(self):
        return 1.0


class AlarmRunTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        for name in ("_BETWEEN_SAMPLES_SECONDS", "_LEAST_SECONDS"):
            self.useFixture(fixtures.MockPatchObject(alarm, name, 0.0))
        self.poster = self.useFixture(fixtures.MockPatchObject(alarm, "Poster")).mock.return_value
        self.poster.refused = []
        self.load, self.check, self.message = StandInLoad(), mock.Mock(), []

    def run_alarm(self, states=("OK", "ALARM", "OK"), **named):
        webhook = mock.Mock(url="http://127.0.0.1:1/alarms")
        webhook.wait_for.return_value = tuple(
            ReceivedNotification(str(number), state, 1, (200,)) for number, state in enumerate(states)
        )
        run = alarm.AlarmRun(1, self.load, webhook, check=self.check, say=self.message.append)
        run._api = self.api = FollowingApi(self.load, lambda: run._posted, **named)
        return run.go()

    def test_an_alarm_that_follows_the_load_succeeds(self):
        summary = self.run_alarm()
        self.assertEqual(("OK", "ALARM", "OK"), summary.history)
        self.assertTrue(summary.good)
        parse(self.api.posts["/v2.0/alarm-definitions"]["expression"])
        self.assertEqual(("the-alarm", summary.posted), (summary.alarm_id, self.poster.post.call_count))

    def test_an_alarm_that_does_not_change_is_an_error(self):
        self.useFixture(fixtures.MockPatchObject(alarm, "_STATE_SECONDS", alarm._STATE_SECONDS))
        summary = self.run_alarm(stuck=True)
        self.assertEqual((("OK",), False), (summary.history, summary.good))
        self.assertIn("did not become ALARM", self.message[-1])
        self.assertFalse(self.load.works)

    def test_the_webhook_is_the_method_of_both_states_and_has_to_receive_each_change(self):
        for states, is_good in ((("OK", "ALARM", "OK"), True), (("OK", "ALARM"), False)):
            summary = self.run_alarm(states)
            self.assertEqual((states, is_good), (tuple(each.state for each in summary.notifications), summary.good))
            self.assertEqual("http://127.0.0.1:1/alarms", self.api.posts["/v2.0/notification-methods"]["address"])
            definition = self.api.posts["/v2.0/alarm-definitions"]
            for actions in ("alarm_actions", "ok_actions"):
                self.assertEqual(["id of /v2.0/notification-methods"], definition[actions])

    def test_a_service_that_has_ended_stops_the_run(self):
        self.check.side_effect = ServiceFailed("the evaluator ended")
        self.assertRaises(ServiceFailed, self.run_alarm)

    def test_a_refusal_by_the_api_is_reported(self):
        self.poster.refused = ["422 no"]
        self.assertIn("422 no", str(self.assertRaises(ServiceFailed, self.run_alarm)))


class TimelineTest(base.BaseTestCase):
    def test_values_and_changes_are_ordered_by_time(self):
        found = [(each.value, each.state, each.change) for each in alarm.moments(MEASUREMENTS, HISTORY)]
        self.assertEqual(
            [(0.0, "none yet", None), (1.0, "OK", "UNDETERMINED -> OK"), (99.0, "ALARM", "OK -> ALARM")], found
        )

    def test_a_change_without_a_measurement_at_its_time_is_included(self):
        found = alarm.moments(MEASUREMENTS[:1], HISTORY[:1])
        self.assertEqual([("none yet", None), ("OK", "UNDETERMINED -> OK")], [(x.state, x.change) for x in found])

    def test_a_table_shows_the_expression_the_values_and_the_changes(self):
        found = alarm.moments(MEASUREMENTS, HISTORY)
        out = io.StringIO()
        alarm.show(alarm.AlarmSummary(alarm.EXPRESSION, "a", (), found, 3, 1.0, ()), Console(file=out, width=80))
        for text in (alarm.EXPRESSION, "06:00:02.500", "99.0 %", "█" * 20, "OK -> ALARM", "none yet"):
            self.assertIn(text, out.getvalue())


class LocalApiTest(base.BaseTestCase):
    def test_an_unreachable_api_is_reported_with_the_request(self):
        error = self.assertRaises(ServiceFailed, alarm.LocalApi(1).get, "/v2.0/alarms")
        self.assertIn("GET /v2.0/alarms", str(error))


class LocalWebhookTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.webhook = LocalWebhook()
        self.webhook.start()
        self.addCleanup(self.webhook.stop)

    def send(self, notification_id, state):
        body = json.dumps({"state": state, "alarm_timestamp": 1_700_000_000.5}).encode()
        return fetch(self.webhook.url, body, Idempotency_Key=notification_id)[0]

    def test_the_first_attempt_of_an_alarm_is_refused_and_counted_with_the_next(self):
        answers = [self.send("a", "OK"), self.send("b", "ALARM"), self.send("b", "ALARM")]
        self.assertEqual([200, 503, 200], answers)
        received = self.webhook.wait_for(2, 30)
        self.assertEqual([("a", 1, (200,)), ("b", 2, (503, 200))], [(x.id, x.attempts, x.answers) for x in received])

    def test_after_the_time_out_the_received_notifications_are_returned(self):
        self.send("b", "ALARM")
        self.assertEqual([False], [each.accepted for each in self.webhook.wait_for(1, 0)])

    def test_a_table_shows_ids_and_attempts(self):
        self.send("0123456789abcdef0123456789abcdef", "ALARM")
        self.send("0123456789abcdef0123456789abcdef", "ALARM")
        out = io.StringIO()
        show(self.webhook.received(), Console(file=out, width=80))
        for text in ("0123456789abcdef0123456789abcdef", "503, 200", " 2 "):
            self.assertIn(text, out.getvalue())
