# SPDX-License-Identifier: Apache-2.0
"""PagerDuty: an event of Events API v2; the method's address is the routing key."""

from __future__ import annotations

import datetime
import re

from monasca_common.models import json_text
from monasca_common.notification.errors import AddressRefused
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import OwnNotifier
from monasca_common.notification.settings import PagerdutySettings, pagerduty_settings

_ROUTING_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SEVERITIES = {"LOW": "info", "MEDIUM": "warning", "HIGH": "error", "CRITICAL": "critical"}
_MOST_DETAIL = 20_000  # characters


class PagerdutyNotifier(OwnNotifier[PagerdutySettings]):
    read = staticmethod(pagerduty_settings)

    def send(self, notification: Notification, address: str) -> str:
        if _ROUTING_KEY.fullmatch(address) is None:
            raise AddressRefused("the address is not a PagerDuty routing key: write only letters, digits, _ and -")
        change, texts = notification.change, self._tools.texts
        # Each notification is a separate event, whose key is the id of the notification and not of the alarm, so that
        # PagerDuty recognizes a repeated attempt. Therefore an OK triggers an event of the lowest severity: a "resolve"
        # would need the key of the ALARM event.
        event = {
            "routing_key": address,
            "event_action": "trigger",
            "dedup_key": notification.id,
            "payload": {
                "summary": texts.subject(notification),
                "source": change.alarm_id,
                "severity": "info" if change.new_state == "OK" else _SEVERITIES.get(change.severity, "warning"),
                "timestamp": datetime.datetime.fromtimestamp(change.time_ms / 1000, datetime.UTC).isoformat(),
                "class": change.new_state,
                "custom_details": {"text": texts.text(notification)[:_MOST_DETAIL]},
            },
        }
        url, timeout = self._settings.url, self._settings.timeout
        answer = self._tools.http.post(url, json_text.write(event), {}, timeout, is_operators=True)
        return f"responded with {answer.status}"
