# SPDX-License-Identifier: Apache-2.0
"""Workers of the notification service are killed one after another at each critical point, and dependencies have long
outages.

``MONASCA_STRESS_NOTIFICATION_KILLS``: the number of kills at each point, 50 by default.
``MONASCA_STRESS_OUTAGE_SECONDS``: the length of an outage, 180 s by default.
"""

import os
import sys

from monasca_common.tests.functional.notification import test_notification_kafka as functional

KILLS = int(os.environ.get("MONASCA_STRESS_NOTIFICATION_KILLS", "50"))
OUTAGE_SECONDS = float(os.environ.get("MONASCA_STRESS_OUTAGE_SECONDS", "180"))
SECONDS_A_KILL = 20
CHUNK = 20
PLACES = (
    "notification.before_send=kill@5",
    "notification.after_send=kill@5",
    "processor.before_commit=kill@2",
    "processor.after_handle=kill@5",
    "notification.after_claim=kill@5",
    "notification.after_attempt=kill@2",
)


class NotificationKillsTest(functional.CrashCase):
    def test_each_change_is_notified_and_repeats_are_counted(self):
        self.receive()
        kills = KILLS * len(PLACES)
        self.start(*PLACES, deaths=kills)
        published = 0

        def has_died():
            nonlocal published
            if 2 * published - self.sent() < 2 * CHUNK:
                self.publish(range(published, published + CHUNK))
                published += CHUNK
            return self.deaths() >= kills

        self.wait_until(has_died, f"{kills} deaths", seconds=kills * SECONDS_A_KILL)
        self.wait_until(lambda: self.sent() == 2 * published, lambda: f"{2 * published} sent instead of {self.sent()}")
        doubled = self.assert_none_lost_and_doubles_counted(published)
        sys.stderr.write(f"{kills} deaths, {published} changes, {doubled} sent again and counted\n")


class LongOutageTest(functional.OutageTest):
    seconds = OUTAGE_SECONDS


class LongDatabaseOutageTest(functional.DatabaseOutageTest):
    seconds = OUTAGE_SECONDS
