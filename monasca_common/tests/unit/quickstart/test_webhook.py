# SPDX-License-Identifier: Apache-2.0
import io
import json
import urllib.error
import urllib.request

from oslotest import base
from rich.console import Console

from monasca_common.quickstart.webhook import LocalWebhook, show


class LocalWebhookTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.webhook = LocalWebhook()
        self.webhook.start()
        self.addCleanup(self.webhook.stop)

    def send(self, notification_id, state):
        body = json.dumps({"state": state, "alarm_timestamp": 1_700_000_000.5}).encode()
        request = urllib.request.Request(self.webhook.url, body, {"Idempotency-Key": notification_id})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def test_the_first_attempt_of_an_alarm_is_refused_and_counted_with_the_next(self):
        answers = [self.send("a", "OK"), self.send("b", "ALARM"), self.send("b", "ALARM")]
        self.assertEqual([200, 503, 200], answers)
        received = self.webhook.wait_for(2, 30)
        self.assertEqual([("a", 1, (200,)), ("b", 2, (503, 200))], [(x.id, x.attempts, x.answers) for x in received])

    def test_who_waits_in_vain_gets_what_there_is(self):
        self.send("b", "ALARM")
        self.assertEqual([False], [each.taken for each in self.webhook.wait_for(1, 0)])

    def test_each_attempt_can_be_followed(self):
        told = []
        self.webhook.tell(told.append)
        self.send("a", "OK")
        self.assertEqual(["a"], [each.id for each in told])

    def test_a_table_shows_ids_and_attempts(self):
        self.send("0123456789abcdef0123456789abcdef", "ALARM")
        self.send("0123456789abcdef0123456789abcdef", "ALARM")
        out = io.StringIO()
        show(self.webhook.received(), Console(file=out, width=80))
        for text in ("0123456789abcdef0123456789abcdef", "503, 200", " 2 "):
            self.assertIn(text, out.getvalue())
