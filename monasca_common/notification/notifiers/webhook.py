# SPDX-License-Identifier: Apache-2.0
"""Webhooks: Monasca's JSON, with four additional fields."""

from __future__ import annotations

import hmac
import time
from typing import Any

from monasca_common.alarms.transitions import AlarmChange
from monasca_common.models import json_text
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import OwnNotifier
from monasca_common.notification.settings import WebhookSettings, webhook_settings


class WebhookNotifier(OwnNotifier[WebhookSettings]):
    read = staticmethod(webhook_settings)

    def send(self, notification: Notification, address: str) -> str:
        body = json_text.write(body_of(notification))
        headers = {"Idempotency-Key": notification.id}
        if self._settings.hmac_secret and notification.method_id:
            headers |= signature(self._settings.hmac_secret, notification, body, round(time.time()))
        answer = self._tools.http.post(address, body, headers, self._settings.timeout)
        return f"responded with {answer.status}"


def signature(secret: str, notification: Notification, body: bytes, now_seconds: int) -> dict[str, str]:
    """Return the headers that sign the time, the id and the body with the method's own key.

    The key is derived, so that a tenant with the key of its method cannot sign for other methods.
    """
    key = hmac.digest(secret.encode(), notification.method_id.encode(), "sha256").hex()
    signed = b".".join((str(now_seconds).encode(), notification.id.encode(), body))
    digest = hmac.digest(key.encode(), signed, "sha256").hex()
    return {"X-Monasca-Timestamp": str(now_seconds), "X-Monasca-Signature": f"sha256={digest}"}


def body_of(notification: Notification) -> dict[str, Any]:
    """Return the body: the change, or, for a group, the worst change, and ``alarms`` with all changes."""
    alarms = {"alarms": [document(each) for each in notification.changes]} if notification.others else {}
    return {**document(notification.change), **alarms}


def document(change: AlarmChange) -> dict[str, Any]:
    """Return the fields of a change. ``alarm_timestamp``: in seconds."""
    return {
        "alarm_id": change.alarm_id,
        "alarm_definition_id": change.definition_id,
        "alarm_name": change.name,
        "alarm_description": change.description,
        "alarm_timestamp": change.time_ms / 1000,
        "state": change.new_state,
        "old_state": change.old_state,
        "message": change.reason,
        "tenant_id": change.tenant,
        "metrics": [each.document for each in change.metrics],
        "metrics_total": change.metrics_total,
        "severity": change.severity,
        "link": change.link,
        "lifecycle_state": change.lifecycle_state,
    }
