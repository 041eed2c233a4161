# SPDX-License-Identifier: Apache-2.0
"""Each notifier is loaded by its type, configured by a file, and sends to a real receiver; so is the example."""

import dataclasses
import email
import email.policy
import hashlib
import hmac
import importlib.metadata
import json
import logging
import re
import threading
import time
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.alarms import notification_methods
from monasca_common.alarms.notification_methods import NotificationMethod, faults, types
from monasca_common.alarms.transitions import AlarmedMetric
from monasca_common.devbroker import certificates
from monasca_common.kafka import entry_point
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.notification.errors import AddressRefused, SendFailed, SendRefused
from monasca_common.notification.notification import Notification, group_of, notification_of
from monasca_common.notification.notifiers.base import load_notifiers
from monasca_common.notification.notifiers.email import message_of
from monasca_common.notification.texts import Texts
from monasca_common.tests.example_case import ExampleCase
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.notification.receivers import HttpReceiver, MailServer, change

CONFIGURATION = "[notification]\nallowed_networks = 127.0.0.1/32\n"
_HANG_SECONDS = 5.0
HOSTILE_TEXT = "{{ ''.__class__ }}\r\nBcc: all@example.org <!channel> </p><script>"


class NotifierCase(ConfigurationTestCase):
    type = "webhook"

    def notifier(self, text=""):
        conf = self.configured(CONFIGURATION + text)
        return load_notifiers(conf, self.type)[0]

    def receiver(self, kind=HttpReceiver, **named):
        made = kind(**named)
        self.addCleanup(made.close)
        return made

    def posted(self, receiver):
        """Return headers and document of the only request."""
        [(_, headers, body)] = receiver.requests
        return headers, json.loads(body)


class IdTest(ConfigurationTestCase):
    def test_the_id_depends_on_alarm_time_state_and_method(self):
        ids = {
            notification_of(change(**facts), method).id
            for facts in ({}, {"alarm_id": "a2"}, {"time_ms": 5}, {"new_state": "OK"}, {"reason": "another"})
            for method in ("m1", "m2")
        }
        self.assertEqual(8, len(ids))


class TypesTest(ConfigurationTestCase):
    def test_each_installed_notifier_has_a_type(self):
        self.assertLessEqual({"EMAIL", "JIRA", "PAGERDUTY", "SLACK", "WEBHOOK"}, set(types()))

    def test_an_unknown_type_is_refused_with_the_known_types(self):
        refused = self.refused(load_notifiers, self.configured(CONFIGURATION), "fax")
        self.assertIn("use one of email, jira, pagerduty, slack, webhook", refused)

    def test_a_type_without_its_package_is_omitted_and_a_broken_one_causes_a_warning(self):
        found = {
            "monasca_fax_machine:Fax": "",
            "json:missing": "methods of type FAX are unavailable: the notifier cannot be loaded",
        }
        for place, message in found.items():
            entry_point = importlib.metadata.EntryPoint("fax", place, notification_methods.NOTIFIERS)
            log = self.useFixture(fixtures.FakeLogger(notification_methods.__name__, level=logging.INFO))
            with fixtures.MonkeyPatch("importlib.metadata.entry_points", lambda group, each=entry_point: [each]):
                self.assertEqual({}, dict(notification_methods.plugins.__wrapped__()))
            self.assertEqual((bool(message), True), (bool(log.output), message in log.output))


class SettingsTest(ConfigurationTestCase):
    def test_an_invalid_network_is_refused(self):
        conf = self.configured("[notification]\nallowed_networks = 10.0.0.1/8\n")
        self.assertIn("allowed_networks in group [notification]", self.refused(load_notifiers, conf))

    def test_a_password_needs_encryption(self):
        conf = self.configured("[email_notifier]\nstarttls = false\nuser = u\npassword = p\n")
        self.assertRaises(ConfigurationError, load_notifiers, conf, "email")


class NetworksTest(NotifierCase):
    def test_only_the_notifier_of_a_configured_server_can_reach_it_without_permission(self):
        receiver = self.receiver()
        jira = f"[jira_notifier]\nurl = {receiver.url('')}\ntoken = t\n"
        webhook, jira = load_notifiers(self.configured(jira), "webhook", "jira")
        notification = notification_of(change(), "m1")
        self.assertRaises(AddressRefused, webhook.send, notification, receiver.url())
        self.assertEqual([], receiver.requests)
        address = receiver.url("/?project=OPS")
        self.assertRaises(SendFailed, jira.send, notification, address)  # the receiver is not Jira
        self.assertEqual(1, len(receiver.requests))

    def test_a_denied_network_is_refused_to_all_notifiers(self):
        conf = self.configured(f"{CONFIGURATION}denied_networks = 127.0.0.0/8\n")
        self.assertRaises(AddressRefused, load_notifiers(conf, "webhook")[0].send, notification_of(change(), "m1"),
                          self.receiver().url())  # fmt: skip

    def test_an_invalid_network_is_refused_with_its_group(self):
        for group, name in (("notification", "denied_networks"), ("notification", "allowed_networks")):
            conf = self.configured(f"[{group}]\n{name} = 10.0.0.1/8\n")
            self.assertIn(f"{name} in group [{group}]", self.refused(lambda conf=conf: load_notifiers(conf, "jira")))


class WebhookTest(NotifierCase):
    def test_the_body_has_the_fields_of_monasca_and_four_additional_fields(self):
        receiver = self.receiver()
        notification = notification_of(change(), "m1")

        self.notifier().send(notification, receiver.url())

        headers, body = self.posted(receiver)
        self.assertEqual((notification.id, "application/json"), (headers["Idempotency-Key"], headers["Content-Type"]))
        self.assertEqual(
            {
                "alarm_id": "a1",
                "alarm_definition_id": "d1",
                "alarm_name": "cpu is busy",
                "alarm_description": "",
                "alarm_timestamp": 1_790_000_000.123,
                "state": "ALARM",
                "old_state": "OK",
                "message": "Thresholds were exceeded",
                "tenant_id": "t1",
                "metrics": [{"name": "cpu", "dimensions": {"hostname": "h1"}}],
                "severity": "HIGH",
                "link": None,
                "lifecycle_state": None,
                "metrics_total": 1,
            },
            body,
        )

    def test_the_body_of_a_group_has_the_fields_of_its_worst_alarm_and_all_alarms(self):
        receiver = self.receiver()
        notification = group_of(
            [notification_of(each, "m1") for each in (change(alarm_id="a1", new_state="OK"), change(alarm_id="a2"))]
        )

        self.notifier().send(notification, receiver.url())

        headers, body = self.posted(receiver)
        self.assertEqual((notification.id, "a2"), (headers["Idempotency-Key"], body["alarm_id"]))
        self.assertEqual(
            [("a2", "ALARM"), ("a1", "OK")], [(each["alarm_id"], each["state"]) for each in body["alarms"]]
        )
        self.assertEqual({*body} - {"alarms"}, {*body["alarms"][0]})

    def test_a_token_of_the_service_is_not_sent(self):
        receiver = self.receiver()
        self.notifier().send(notification_of(change(), "m1"), receiver.url())
        self.assertEqual(set(), {"Authorization", "X-Auth-Token", "Cookie"} & self.posted(receiver)[0].keys())

    def test_an_id_that_contains_a_header_is_not_sent(self):
        receiver = self.receiver()
        for hostile in ("a\r\nX-Auth-Token: t", "a\nX: 1", "a\r\n\r\nPOST / HTTP/1.1"):
            self.assertRaises(SendFailed, self.notifier().send, Notification(hostile, change()), receiver.url())
        self.assertEqual([], receiver.requests)

    def test_a_key_of_each_method_signs_time_id_and_body(self):
        receiver, signatures = self.receiver(), set()
        notifier = self.notifier("[webhook_notifier]\nhmac_secret = s3cret\n")
        for method in ("m1", "m2"):
            notifier.send(dataclasses.replace(notification_of(change(), "m1"), method_id=method), receiver.url())
            _, headers, body = receiver.requests[-1]
            key = hmac.new(b"s3cret", method.encode(), hashlib.sha256).hexdigest()
            signed = f"{headers['X-Monasca-Timestamp']}.{headers['Idempotency-Key']}.".encode() + body
            expected = hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()
            self.assertEqual(f"sha256={expected}", headers["X-Monasca-Signature"])
            self.assertAlmostEqual(time.time(), int(headers["X-Monasca-Timestamp"]), delta=60)
            signatures.add(expected)
        self.assertEqual(2, len(signatures))

    def test_an_alarm_of_5_mb_is_sent_completely(self):
        receiver = self.receiver()
        metrics = [AlarmedMetric(f"m{number}", {"d": "x" * 500}) for number in range(10_000)]
        self.notifier().send(notification_of(change(metrics=metrics), "m1"), receiver.url())
        self.assertEqual(10_000, len(self.posted(receiver)[1]["metrics"]))
        self.assertGreater(len(receiver.requests[0][2]), 5_000_000)


class SlackTest(NotifierCase):
    type = "slack"

    def test_a_text_cannot_mention_a_channel(self):
        receiver = self.receiver()
        self.notifier().send(notification_of(change(name=HOSTILE_TEXT), "m1"), receiver.url())
        text = self.posted(receiver)[1]["text"]
        self.assertIn("&lt;!channel&gt;", text)
        self.assertIn("{{ ''.__class__ }}", text)

    def test_an_address_of_the_web_api_keeps_its_channel(self):
        receiver = self.receiver()
        address = receiver.url("/api/chat.postMessage?token=t0k&channel=#alarms")
        self.notifier().send(notification_of(change(), "m1"), address)
        self.assertEqual("/api/chat.postMessage?token=t0k&channel=%23alarms", receiver.requests[0][0])

    def test_a_refusal_by_slack_with_status_200_is_a_failure(self):
        receiver = self.receiver()
        receiver.answer = receiver.answers(200, b'{"ok": false, "error": "channel_not_found"}')
        failure = self.assertRaises(SendFailed, self.notifier().send, notification_of(change(), "m1"), receiver.url())
        self.assertIn("channel_not_found", str(failure))


class PagerdutyTest(NotifierCase):
    type = "pagerduty"

    def test_an_event_has_the_id_of_the_notification(self):
        receiver = self.receiver()
        notification = notification_of(change(), "m1")
        self.notifier(f"[pagerduty_notifier]\nurl = {receiver.url()}\n").send(notification, "R0UT1NG")
        event = self.posted(receiver)[1]
        self.assertEqual(
            (notification.id, "R0UT1NG", "trigger"), (event["dedup_key"], event["routing_key"], event["event_action"])
        )
        self.assertEqual(("error", "ALARM: cpu is busy"), (event["payload"]["severity"], event["payload"]["summary"]))

    def test_an_invalid_routing_key_is_refused(self):
        self.assertRaises(AddressRefused, self.notifier().send, notification_of(change(), "m1"), "key\r\nX: 1")


class JiraReceiver(HttpReceiver):
    """The parts of Jira that a notifier needs.

    ``issues``: {key: fields}, with ``comments``. ``cloud``: whether it behaves like Jira Cloud.
    """

    def __init__(self):
        super().__init__()
        self.issues = {}
        self.cloud = False
        self.answer = self._answer

    def _answer(self, handler):
        path, _, body = self.requests[-1]
        message = json.loads(body)
        searches = {"/rest/api/2/search/jql": True, "/rest/api/2/search": not self.cloud}
        if path in searches and not searches[path]:
            return self.answers(410)(handler)
        if path in searches:
            found = {"issues": [{"key": key} for key, each in self.issues.items() if _matches(each, message["jql"])]}
        elif path == "/rest/api/2/issue":
            found = {"key": f"OPS-{len(self.issues) + 1}"}
            self.issues[found["key"]] = {**message["fields"], "comments": []}
        else:
            found = {"id": "1", "body": message["body"]}
            self.issues[path.split("/")[-2]]["comments"].append(message["body"])
        return self.answers(200, json.dumps(found, ensure_ascii=False).encode())(handler)


def _matches(fields, jql):
    texts = [fields["description"], *fields["comments"]]
    wanted = re.findall('comment ~ "(.*?)"', jql)
    labels = re.findall('labels = "(.*?)"', jql)
    is_labelled = set(labels) <= set(fields["labels"])
    return is_labelled and all(any(each in text for text in texts) for each in wanted)


class JiraTest(NotifierCase):
    type = "jira"

    def setUp(self):
        super().setUp()
        self.jira = self.receiver(JiraReceiver)
        self.address = f"{self.jira.url('/')}?project=OPS&component=Network"

    def jira_notifier(self, account="user = u\npassword = p"):
        return self.notifier(f"[jira_notifier]\nurl = {self.jira.url('')}\n{account}\n")

    def test_an_alarm_has_one_issue_and_a_comment_for_each_further_change(self):
        first, second = notification_of(change(), "m1"), notification_of(change(new_state="OK", time_ms=5), "m1")
        answers = [self.jira_notifier().send(each, self.address) for each in (first, second)]

        self.assertEqual(["created OPS-1", "commented on OPS-1"], answers)
        [issue] = self.jira.issues.values()
        facts = {name: issue[name] for name in ("project", "issuetype", "components", "labels", "summary")}
        self.assertEqual(
            {
                "project": {"key": "OPS"},
                "issuetype": {"name": "Bug"},
                "components": [{"name": "Network"}],
                "labels": ["monasca", "monasca-a1"],
                "summary": "ALARM: cpu is busy",
            },
            facts,
        )
        self.assertIn(f"Notification {first.id}", issue["description"])
        self.assertEqual(1, len(issue["comments"]))
        self.assertIn(f"Notification {second.id}", issue["comments"][0])

    def test_a_long_comment_that_jira_returns_is_accepted(self):
        for time_ms in (1, 2):
            notification = notification_of(change(reason="警" * 30_000, time_ms=time_ms), "m1")
            answer = self.jira_notifier().send(notification, self.address)
        self.assertEqual("commented on OPS-1", answer)

    def test_a_repeat_adds_no_comment(self):
        notifications = [notification_of(change(), "m1"), notification_of(change(new_state="OK"), "m1")]
        for notification in notifications * 2:
            self.jira_notifier().send(notification, self.address)
        self.assertEqual([1], [len(issue["comments"]) for issue in self.jira.issues.values()])

    def test_each_alarm_has_its_own_issue(self):
        for alarm in ("a1", 'x" OR project = "SECRET'):
            self.jira_notifier().send(notification_of(change(alarm_id=alarm), "m1"), self.address)
        self.assertEqual(2, len(self.jira.issues))
        self.assertNotIn("SECRET", "".join(json.loads(body).get("jql", "") for _, _, body in self.jira.requests))

    def test_the_account_is_sent_as_basic_or_as_a_token(self):
        for account, expected in (("user = u\npassword = p", "Basic dTpw"), ("token = t0k", "Bearer t0k")):
            self.jira_notifier(account).send(notification_of(change(), "m1"), self.address)
            self.assertEqual(expected, self.jira.requests[-1][1]["Authorization"])

    def test_jira_cloud_has_another_search_path(self):
        self.jira.cloud = True
        answers = [
            self.jira_notifier().send(notification_of(change(new_state=state), "m1"), self.address)
            for state in ("ALARM", "OK")
        ]
        self.assertEqual(["created OPS-1", "commented on OPS-1"], answers)

    def test_the_account_is_not_sent_to_another_server(self):
        other = self.receiver()
        for address in (
            f"{other.url('/')}?project=OPS",
            self.jira.url("/other/?project=OPS"),
            f"http://localhost:{self.jira.port}/?project=OPS",
            "https://jira.example.org/?project=OPS",
            self.jira.url("/"),
            self.jira.url("/?project=a%22b"),
            self.jira.url("/?project=OPS&component=") + "x" * 256,
        ):
            send = self.jira_notifier().send
            self.assertRaises(AddressRefused, send, notification_of(change(), "m1"), address)
        self.assertEqual(([], []), (other.requests, self.jira.requests))

    def test_without_options_nothing_is_sent(self):
        refusal = self.assertRaises(SendRefused, self.notifier().send, notification_of(change(), "m1"), self.address)
        self.assertIn("set url, and token or user, in [jira_notifier]", str(refusal))

    def test_a_refusal_by_jira_is_a_failure_that_shows_no_secret(self):
        for answer in (self.jira.answers(401), self.jira.answers(200, b"<html>"), self.jira.answers(200, b"[]")):
            self.jira.answer = answer
            failure = self.assertRaises(
                SendFailed, self.jira_notifier("token = t0k").send, notification_of(change(), "m1"), self.address
            )
            self.assertNotIn("t0k", str(failure))

    def test_text_of_an_alarm_is_not_interpreted_as_markup(self):
        notification = notification_of(change(name="{noformat} *bold* [~admin]"), "m1")
        self.jira_notifier().send(notification, self.address)
        [issue] = self.jira.issues.values()
        self.assertEqual(2, issue["description"].count("{noformat}"))

    def test_a_long_text_with_markup_is_short_enough_for_jira(self):
        notification = notification_of(change(reason="{noformat}" * 4000), "m1")
        self.jira_notifier().send(notification, self.address)
        [issue] = self.jira.issues.values()
        self.assertLessEqual(len(issue["description"]), 32_767)
        self.assertEqual(2, issue["description"].count("{noformat}"))


class DestinationsTest(NotifierCase):
    def test_methods_of_one_server_have_one_destination(self):
        for expected, type_, address in (
            ("hooks.example.org", "webhook", "https://hooks.EXAMPLE.org.:443/a"),
            ("WebhookNotifier", "webhook", "https://u@x"),
            ("hooks.slack.com", "slack", "https://hooks.slack.com/services/a/b/c"),
            ("EmailNotifier", "email", "a@example.org"),
            ("PagerdutyNotifier", "pagerduty", "key"),
            ("jira.example.org", "jira", "https://jira.example.org/?project=OPS"),
        ):
            [notifier] = load_notifiers(self.configured(CONFIGURATION), type_)
            self.assertEqual(expected, notifier.destination(address))


class EmailTest(NotifierCase):
    type = "email"

    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        certificates.issue(self.folder, [])

    def smtp(self, receiver, **options):
        lines = {"server": "localhost", "port": receiver.port, "from_addr": "monasca@example.org", **options}
        if receiver.context is not None:
            lines.setdefault("ca_file", self.folder / "ca.pem")
        return self.notifier("[email_notifier]\n" + "".join(f"{name} = {lines[name]}\n" for name in lines))

    def test_plain_text_and_html_are_sent_encrypted_with_the_id(self):
        receiver = self.receiver(MailServer, tls=self.folder / "broker.pem")
        notification = notification_of(change(description="größer"), "m1")

        self.smtp(receiver).send(notification, "someone@example.org")

        [(to, text)] = receiver.mails
        mail = email.message_from_bytes(text, policy=email.policy.default)
        self.assertEqual((1, "someone@example.org"), (receiver.encrypted, to))
        self.assertEqual(f"<{notification.id}@example.org>", mail["Message-ID"])
        self.assertEqual("ALARM: cpu is busy", mail["Subject"])
        self.assertIn("größer", mail.get_body(("plain",)).get_content())
        self.assertIn("<h2>cpu is busy: ALARM</h2>", mail.get_body(("html",)).get_content())

    def test_no_text_of_an_alarm_becomes_a_header_or_a_tag(self):
        receiver = self.receiver(MailServer)
        notification = notification_of(change(name=HOSTILE_TEXT, reason=HOSTILE_TEXT), "m1")

        self.smtp(receiver, starttls="false").send(notification, "someone@example.org")

        mail = email.message_from_bytes(receiver.mails[0][1], policy=email.policy.default)
        self.assertIsNone(mail["Bcc"])
        self.assertNotIn("<script>", mail.get_body(("html",)).get_content())
        self.assertIn("{{ ''.__class__ }} Bcc: all@example.org", mail["Subject"])

    def test_an_encoded_word_in_the_name_of_an_alarm_is_not_decoded(self):
        for encoded in ("q?=00=0D=0ABcc:_all=40example.org", "b?AA=="):
            notification = notification_of(change(name=f"=?utf-8?{encoded}?="), "m1")
            mail = message_of(notification, Texts(), sender="m@example.org", receiver="a@example.org").as_bytes()
            self.assertIn(b"utf-8?" + encoded.encode(), mail.partition(b"\r\n\r\n")[0])
            self.assertNotIn(b"\0", mail)

    def test_a_mail_is_ascii_because_servers_need_not_accept_other_bytes(self):
        notification = notification_of(change(name="größer", description="größer"), "m1")
        mail = message_of(notification, Texts(), sender="Zoë <m@example.org>", receiver="a@example.org").as_bytes()
        self.assertTrue(mail.isascii())
        text = email.message_from_bytes(mail, policy=email.policy.default).get_body(("plain",)).get_content()
        self.assertIn("größer", text)

    def test_an_invalid_mail_address_is_refused(self):
        receiver = self.receiver(MailServer)
        for address in (
            "a@example.org\r\nBcc: b@example.org",
            "a@example.org\nX: 1",
            "a@example.org, b@example.org",
            "a@example.org;b@example.org",
            "Name <a@example.org>",
            "a@example.org (comment)",
            "a",
            "@example.org",
            "a@",
            "a@exa\x00mple.org",
        ):
            send = self.smtp(receiver, starttls="false").send
            self.assertRaises(AddressRefused, send, notification_of(change(), "m1"), address)
        self.assertEqual([], receiver.mails)

    def test_no_mail_is_sent_to_a_server_without_the_required_encryption(self):
        receiver = self.receiver(MailServer)
        self.assertRaises(SendFailed, self.smtp(receiver).send, notification_of(change(), "m1"), "a@example.org")
        self.assertEqual([], receiver.mails)

    def test_a_certificate_of_another_authority_is_refused(self):
        receiver = self.receiver(MailServer, tls=self.folder / "broker.pem")
        notifier = self.smtp(receiver, ca_file=self.folder / "other-ca.pem")
        self.assertRaises(SendFailed, notifier.send, notification_of(change(), "m1"), "a@example.org")
        self.assertEqual([], receiver.mails)

    def test_a_refusal_is_a_failure_with_its_code(self):
        receiver = self.receiver(MailServer)
        for command, answer in (("MAIL", "451 later"), ("RCPT", "550 nobody"), ("DATA", "554 no")):
            receiver.refuses = {command: answer}
            send = self.smtp(receiver, starttls="false").send
            failure = self.assertRaises(SendFailed, send, notification_of(change(), "m1"), "a@example.org")
            self.assertIn(answer[:3], str(failure))
            # tenants read the reason, and the server belongs to the operator
            self.assertNotIn("localhost", str(failure))
            self.assertIn(f"localhost:{receiver.port}", failure.for_operators)

    def test_a_hanging_mail_server_is_disconnected(self):
        receiver = self.receiver(MailServer)
        receiver.hangs_at = "DATA"
        send = self.smtp(receiver, starttls="false", timeout=0.3).send
        failure = self.assertRaises(SendFailed, send, notification_of(change(), "m1"), "a@example.org")
        self.assertEqual("the mail server gave no response within 0.3 s", str(failure))

    def test_a_hanging_look_up_of_the_mail_server_ends_with_the_time_out(self):
        receiver, ended = self.receiver(MailServer), threading.Event()
        self.addCleanup(ended.set)
        send = self.smtp(receiver, starttls="false", timeout=0.1).send
        self.useFixture(fixtures.MonkeyPatch("socket.getaddrinfo", lambda *_, **__: ended.wait(_HANG_SECONDS)))
        failure = self.assertRaises(SendFailed, send, notification_of(change(), "m1"), "a@example.org")
        self.assertIn("within 0.1 s", str(failure))
        self.assertNotIn("localhost", str(failure))

    def test_a_refused_quit_is_not_a_failure(self):
        receiver = self.receiver(MailServer)
        receiver.refuses = {"QUIT": "500 no"}
        self.smtp(receiver, starttls="false").send(notification_of(change(), "m1"), "a@example.org")
        self.assertEqual(1, len(receiver.mails))


class GroupTextsTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.texts = Texts()

    def group(self, count, **facts):
        return group_of([notification_of(change(alarm_id=f"a{number}", **facts), "m1") for number in range(count)])

    def test_the_text_of_a_group_has_the_number_of_changes_and_each_alarm(self):
        notification = group_of(
            [notification_of(each, "m1") for each in (change(), change(alarm_id="a2", new_state="OK"))]
        )
        self.assertEqual("2 changes of alarms, the worst ALARM: cpu is busy", self.texts.subject(notification))
        for text in (self.texts.text(notification), self.texts.html(notification)):
            self.assertIn("Alarm a1", text)
            self.assertIn("Alarm a2", text)
        self.assertIn("Metric cpu {hostname=h1}", self.texts.text(notification))

    def test_a_large_group_shows_the_number_of_omitted_members(self):
        text = self.texts.text(self.group(150))
        self.assertEqual(100, text.count("Alarm a"))
        self.assertIn("and 50 more", text)

    def test_text_of_an_alarm_is_not_interpreted_as_a_template(self):
        notification = self.group(2, name="{{ 7 * 7 }}<b>", reason="<script>\n")
        self.assertIn("{{ 7 * 7 }}&lt;b&gt;", self.texts.html(notification))
        self.assertNotIn("<script>", self.texts.html(notification))
        self.assertIn("{{ 7 * 7 }}<b>", self.texts.subject(notification))


class TemplatesTest(NotifierCase):
    type = "slack"

    def text(self, template):
        """Return the text that is sent with this template."""
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "text.txt").write_text(template)
        receiver = self.receiver()
        conf = self.configured(f"{CONFIGURATION}templates_folder = {folder}\n")
        load_notifiers(conf, self.type)[0].send(notification_of(change(), "m1"), receiver.url())
        return self.posted(receiver)[1]["text"]

    def test_an_operator_can_replace_a_template(self):
        self.assertEqual("cpu is busy: h1", self.text("{{ change.name }}: {{ metrics[0].dimensions.hostname }}"))

    def test_a_missing_field_is_empty(self):
        self.assertEqual("[]", self.text("[{{ change.nothing }}]"))

    def test_templates_cannot_leave_the_sandbox(self):
        for template in (
            "{{ ''.__class__.__mro__ }}",
            "{{ change.__class__.__init__.__globals__ }}",
            "{{ cycler.__init__.__globals__.os }}",
            "{% for x in range(10000000) %}{% endfor %}",
            "{% broken",
        ):
            self.assertRaises(SendRefused, self.text, template)


class NtfyNotifierTest(NotifierCase, ExampleCase):
    type = "ntfy"

    def setUp(self):
        super().setUp()
        for folder in self.installed("ntfy_notifier"):
            self.useFixture(fixtures.PythonPathEntry(str(folder)))
        for cached in (notification_methods.plugins, entry_point):
            cached.cache_clear()
            self.addCleanup(cached.cache_clear)
        self.server = self.receiver()

    def test_the_notifier_posts_to_the_server_with_the_id_of_the_notification(self):
        notification = notification_of(change(severity="CRITICAL"), "m1")

        self.assertEqual("responded with 200", self.notifier().send(notification, self.server.url("/alarms")))

        headers, document = self.posted(self.server)
        self.assertEqual(notification.id, headers["Idempotency-Key"])
        self.assertEqual(
            ("alarms", "ALARM: cpu is busy", 5), tuple(document[name] for name in ("topic", "title", "priority"))
        )
        self.assertIn("Thresholds were exceeded", document["message"])

    def test_a_failure_of_the_server_is_retriable(self):
        self.server.answer = self.server.answers(500)
        failure = self.assertRaises(
            SendFailed, self.notifier().send, notification_of(change(), "m1"), self.server.url("/alarms")
        )
        self.assertEqual(500, failure.status)

    def test_a_private_network_must_be_allowed(self):
        notifier = load_notifiers(self.configured(""), self.type)[0]
        self.assertRaises(AddressRefused, notifier.send, notification_of(change(), "m1"), self.server.url("/alarms"))

    def test_the_api_accepts_the_type_and_refuses_an_invalid_address(self):
        self.assertIn("NTFY", notification_methods.types())
        [(_, rule)] = faults(NotificationMethod("phone", "NTFY", "https://ntfy.sh/a/b"))
        self.assertIn("is not the URL of a topic", rule)
        self.assertEqual([], list(faults(NotificationMethod("phone", "NTFY", "https://ntfy.sh/alarms"))))
