# SPDX-License-Identifier: Apache-2.0
"""The status port of the running service, and the reload of its configuration by SIGHUP."""

import json
import signal
from pathlib import Path

import fixtures

from monasca_common.devbroker.ports import free_ports
from monasca_common.tests.functional.notification import test_notification_kafka
from monasca_common.tests.waiting import PATIENCE_SECONDS
from monasca_common.tests.web import fetch

CHANGES = 5


class OperationTest(test_notification_kafka.NotificationKafkaCase):
    def get(self, path):
        """Return the status and the text of a response; the status is 0 without a response."""
        try:
            return fetch(f"http://127.0.0.1:{self.port}{path}")
        except OSError:
            return 0, ""

    def pids(self):
        """Return the process ids of the workers that run."""
        members = json.loads(self.get("/healthcheck")[1] or "{}").get("members", {})
        return {member["pid"] for member in members.values() if member["pid"]}

    def test_the_service_serves_its_status_and_reloads_its_configuration(self):
        [self.port] = free_ports(1)
        configuration = test_notification_kafka._CONFIGURATION.replace(
            "[notification]\n", f"[notification]\nstatus_port = {self.port}\n"
        )
        self.useFixture(fixtures.MonkeyPatch(f"{test_notification_kafka.__name__}._CONFIGURATION", configuration))
        hook = self.receiver()
        self.method(hook.url())
        process = self.start()
        self.publish(range(CHANGES))
        self.wait_until(lambda: self.sent() == CHANGES, "the notifications")

        for path in ("/healthcheck", "/healthz", "/readyz"):
            self.wait_until(lambda path=path: self.get(path)[0] == 200, path)
        counted = f'monasca_notification_sent_total{{type="webhook"}} {CHANGES:.1f}'
        self.wait_until(lambda: counted in self.get("/metrics")[1], counted)  # a worker reports once a second

        file = Path(self.folder, "notification.conf")
        signed = file.read_text().replace("[webhook_notifier]\n", "[webhook_notifier]\nhmac_secret = s3cret\n")
        file.write_text(signed)
        first = self.pids()
        process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: self.pids() - first, "the worker that replaces the first")
        self.publish([CHANGES])
        self.wait_until(lambda: self.sent() == CHANGES + 1, "one more")
        signatures = ["X-Monasca-Signature" in headers for _, headers, _ in hook.requests]
        self.assertEqual([False] * CHANGES + [True], signatures)

        process.terminate()
        self.assertEqual(0, process.wait(PATIENCE_SECONDS))
