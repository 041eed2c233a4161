# SPDX-License-Identifier: Apache-2.0
"""Each service of Apprise that addresses may name by default, against an HTTP receiver on this machine."""

import json
from urllib.parse import urlsplit

import apprise
import fixtures
import requests

from monasca_common.notification.errors import SendRefused
from monasca_common.notification.notification import group_of, notification_of
from monasca_common.notification.notifiers.plugins import Notifiers
from monasca_common.notification.settings import FIXED_HOSTS
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.notification.receivers import HttpReceiver, change

UUID = "8b799edf-6f98-4d3a-9be7-2862fb4e5752"
KEY = "a1b2c3d4e5f6" * 10
ADDRESSES = {
    "bsky": "bsky://user:app-pw-12@handle",
    "cliq": f"cliq://1000.{KEY[:32]}.{KEY[:32]}/alarms",
    "clicksend": "clicksend://user:key@15555555555",
    "dingtalk": f"dingtalk://{KEY[:12]}",
    "discord": f"discord://{KEY[:24]}/{KEY[:64]}",
    "feishu": f"feishu://{KEY[:36]}",
    "firehydrant": "firehydrant://token",
    "flock": f"flock://{KEY[:24]}",
    "gchat": "gchat://space/key/token",
    "guilded": f"guilded://{KEY[:24]}/{KEY[:64]}",
    "ifttt": "ifttt://webhook@event",
    "ilert": "ilert://il1apikey123",
    "incidentio": "incidentio://source/token",
    "lark": f"lark://{KEY[:36]}",
    "line": "line://token/U1234",
    "msgbird": f"msgbird://{KEY[:25]}/15555555555/15555555556",
    "notifiarr": "notifiarr://apikey/123456789",
    "onesignal": "onesignal://app@key/player",
    "opsgenie": "opsgenie://apikey",
    "pagertree": "pagertree://int_abcdefghij",
    "pbul": f"pbul://{KEY[:32]}",
    "plivo": f"plivo://{'a' * 25}@{'b' * 40}/15555555555/15555555556",
    "postmark": f"postmark://{UUID}:me@example.org/you@example.org",
    "pover": f"pover://{'u' * 30}@{'a' * 30}",
    "prowl": f"prowl://{'a' * 40}",
    "push": f"push://{UUID}",
    "resend": "resend://abcd:me@example.org/you@example.org",
    "revolt": f"revolt://{'a' * 64}/{'c' * 26}",
    "sendgrid": "sendgrid://abcd:me@example.org/you@example.org",
    "signl4": "signl4://secret",
    "simplepush": "simplepush://HuxgBB",
    "sinch": f"sinch://{'a' * 32}:{'b' * 32}@15555555555/15555555556",
    "slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
    "sns": f"sns://AHIAJGNT76XIMXDBIJYA/{'b' * 30}/us-east-2/12223334444",
    "spike": f"spike://{KEY[:32]}",
    "splunk": "splunk://route@apikey",
    "squadcast": f"squadcast://{KEY[:40]}",
    "telnyx": "telnyx://KEYabc@15555555555/15555555556",
    "tgram": "tgram://123456789:abcdefg_hijklmnop/12315544/",
    "twilio": f"twilio://AC{'a' * 32}:{'b' * 32}@15555555555/15555555556",
    "twist": "twist://password:user@example.com/General/123",
    "victorops": "victorops://route@apikey",
    "vonage": f"vonage://AC{'a' * 8}:{'b' * 16}@15555555555/15555555556",
    "webex": f"webex://{'a' * 80}",
    "wecombot": f"wecombot://{KEY[:36]}",
    "wxteams": f"wxteams://{'a' * 80}",
    "zulip": f"zulip://bot@apprise/{'a' * 32}/general",
}
#: What each service reads in answers that it takes for success.
ANSWER = {
    "accessJwt": "jwt", "access_token": "token", "api_key": "key", "code": 0, "did": "did:plc:1",
    "errcode": 0, "id": 1, "ok": True, "refreshJwt": "jwt", "requestId": "r1", "result": [],
    "service": [{"type": "AtprotoPersonalDataServer", "serviceEndpoint": "https://pds.example"}], "status": "OK",
    "StatusCode": 0, "success": True, "token": "token", "channels": [], "default_workspace": 1,
}  # fmt: skip
OWN_ANSWERS = {"hooks.slack.com": b"ok"}
OPEN, CLOSED = "open", "closed"
#: Services that keep incidents: the fields that say what becomes of one, and what identifies it.
INCIDENTS = {
    "firehydrant": ("status", {"OPEN": OPEN, "CLOSED": CLOSED}, "idempotency_key"),
    "ilert": ("eventType", {"ALERT": OPEN, "RESOLVE": CLOSED}, "alertKey"),
    "incidentio": ("status", {"firing": OPEN, "resolved": CLOSED}, "deduplication_key"),
    "pagertree": ("event_type", {"create": OPEN, "resolve": CLOSED}, "id"),
    "signl4": ("X-S4-Status", {None: OPEN, "resolved": CLOSED}, "X-S4-ExternalID"),
    "splunk": ("message_type", {"CRITICAL": OPEN, "RECOVERY": CLOSED}, "entity_id"),
    "squadcast": ("status", {"trigger": OPEN, "resolve": CLOSED}, "event_id"),
    "victorops": ("message_type", {"CRITICAL": OPEN, "RECOVERY": CLOSED}, "entity_id"),
}
ALARM, OK = change(), change(new_state="OK", old_state="ALARM", time_ms=1_790_000_060_123)


class ServicesTest(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("os.environ", {"PATH": "/bin"}))
        self.useFixture(fixtures.MockPatchObject(apprise.URLBase, "throttle"))
        self.receiver = HttpReceiver()
        self.addCleanup(self.receiver.close)
        self.receiver.answer = self._answer
        conf = self.configured("[notification]\nallowed_networks = 127.0.0.1/32\n")
        self.notifier = Notifiers(conf).load("apprise")
        original = requests.adapters.HTTPAdapter.send

        def to_the_receiver(adapter, request, **named):
            """Connect as the library does, to this machine."""
            url = urlsplit(request.url)
            request.url = self.receiver.url(f"/{url.hostname}{url.path}")
            return original(adapter, request, **named)

        self.useFixture(fixtures.MockPatchObject(requests.adapters.HTTPAdapter, "send", to_the_receiver))

    def _answer(self, handler):
        host = handler.path.split("/")[1]
        self.receiver.answers(200, OWN_ANSWERS.get(host, json.dumps(ANSWER).encode()))(handler)

    def sent(self, scheme, notification, address=None):
        """The requests of one notification."""
        before = len(self.receiver.requests)
        self.notifier.send(notification, address or ADDRESSES[scheme])
        return self.receiver.requests[before:]

    def test_every_service_of_the_default_is_tested(self):
        self.assertEqual(set(FIXED_HOSTS), set(ADDRESSES))

    def test_each_receives_an_alarm_and_its_end(self):
        silent = []
        for scheme in FIXED_HOSTS:
            for facts in (ALARM, OK):
                try:
                    if not self.sent(scheme, notification_of(facts, "m1")):
                        silent.append((scheme, facts.new_state, "nothing arrived"))
                except Exception as error:
                    silent.append((scheme, facts.new_state, repr(error)))
        self.assertEqual([], silent)

    def test_the_end_of_an_alarm_closes_the_incident_that_it_opened(self):
        for scheme, (field, meanings, key) in INCIDENTS.items():
            with self.subTest(scheme):
                bodies = [json.loads(self.sent(scheme, notification_of(each, "m1"))[-1][2]) for each in (ALARM, OK)]
                self.assertEqual([OPEN, CLOSED], [meanings[each.get(field)] for each in bodies], scheme)
                self.assertEqual(bodies[0][key], bodies[1][key])

    def test_two_alarms_of_one_definition_are_two_incidents(self):
        for scheme, (_, _, key) in INCIDENTS.items():
            both = [notification_of(change(alarm_id=each), "m1") for each in ("a1", "a2")]
            self.assertEqual(2, len({json.loads(self.sent(scheme, each)[-1][2])[key] for each in both}), scheme)

    def test_a_group_is_an_incident_of_its_own(self):
        group = group_of([notification_of(ALARM, "m1"), notification_of(change(alarm_id="a2"), "m1")])
        self.assertEqual(group.id, json.loads(self.sent("ilert", group)[-1][2])["alertKey"])

    def test_a_key_in_the_address_is_kept(self):
        [(_, _, body)] = self.sent("ilert", notification_of(ALARM, "m1"), "ilert://il1apikey123?dedup=own")
        self.assertEqual("own", json.loads(body)["alertKey"])

    def test_an_action_in_the_address_opens_an_incident_for_each_notification(self):
        bodies = [
            json.loads(
                self.sent("signl4", notification_of(each, "m1"), "signl4://secret?action=trigger&external_id=")[0][2]
            )
            for each in (ALARM, OK)
        ]
        self.assertEqual([None, None], [each.get("X-S4-Status") for each in bodies])
        self.assertEqual(2, len({each["X-S4-ExternalID"] for each in bodies}))

    def test_opsgenie_opens_an_alert_of_an_alarm_and_one_of_its_end(self):
        for facts in (ALARM, OK):
            [(path, _, body)] = self.sent("opsgenie", notification_of(facts, "m1"))
            self.assertEqual("/api.opsgenie.com/v2/alerts", path)
            self.assertEqual(f"{facts.new_state}: cpu is busy", json.loads(body)["message"])

    def test_an_address_by_which_a_service_sends_nothing_is_refused(self):
        error = self.assertRaises(
            SendRefused, self.notifier.send, notification_of(ALARM, "m1"), "opsgenie://apikey?action=close"
        )
        self.assertIn("opsgenie sends nothing", str(error))

    def test_a_state_that_is_neither_is_a_warning(self):
        undetermined = notification_of(change(new_state="UNDETERMINED"), "m1")
        self.assertEqual("WARNING", json.loads(self.sent("victorops", undetermined)[-1][2])["message_type"])
