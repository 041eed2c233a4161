# SPDX-License-Identifier: Apache-2.0
"""Slack: a message to the URL of an incoming webhook or of ``chat.postMessage``, the method's address."""

from __future__ import annotations

from typing import Any

import orjson

from monasca_common.models import json_text
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import OwnNotifier
from monasca_common.notification.settings import NotifierSettings, slack_settings

_MOST_TEXT = 40_000  # characters; Slack truncates longer texts
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class SlackNotifier(OwnNotifier[NotifierSettings]):
    read = staticmethod(slack_settings)

    def send(self, notification: Notification, address: str) -> str:
        # Unescaped text could mention a channel or hide a link.
        text = self._tools.texts.text(notification).translate(_ESCAPES)[:_MOST_TEXT]
        # Queries of the Web API name a channel as #alarms, but # begins the fragment of a URL.
        address = address.replace("#", "%23")
        headers = {"Idempotency-Key": notification.id}
        answer = self._tools.http.post(address, json_text.write({"text": text}), headers, self._settings.timeout)
        if refused := _refusal(answer.body):
            raise SendFailed(f"Slack refused the message: {refused[:100]!r}")
        return f"responded with {answer.status}"


def _refusal(body: bytes) -> str:
    """Return the error in a response of Slack's Web API, which returns 200 for refused messages."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    is_refused = isinstance(answer, dict) and answer.get("ok") is False
    return str(answer.get("error", "without a reason")) if is_refused else ""
