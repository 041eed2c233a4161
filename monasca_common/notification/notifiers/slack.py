# SPDX-License-Identifier: Apache-2.0
"""Slack: a message by an incoming webhook, or by ``chat.postMessage``, whose URL is the method's address."""

from __future__ import annotations

from typing import Any

import orjson
from oslo_config import cfg

from monasca_common.models import json_text
from monasca_common.notification.errors import SendFailed
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import Notifier, Tools
from monasca_common.notification.settings import NotifierSettings, slack_settings

_MOST_TEXT = 40_000  # characters; Slack cuts what is longer
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class SlackNotifier(Notifier):
    def __init__(self, settings: NotifierSettings, tools: Tools) -> None:
        self._settings = settings
        self._tools = tools

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts, tools: Tools) -> SlackNotifier:
        settings = slack_settings(conf)
        return cls(settings, tools.allowing(settings.allowed_networks))

    def send(self, notification: Notification, address: str) -> str:
        # Unescaped, a text could mention a channel or hide a link.
        text = self._tools.texts.text(notification).translate(_ESCAPES)[:_MOST_TEXT]
        # Methods of the Web API name a channel as #alarms in their query, and a URL ends there.
        address = address.replace("#", "%23")
        headers = {"Content-Type": "application/json", "Idempotency-Key": notification.id}
        body, tenant = json_text.write({"text": text}), notification.change.tenant
        answer = self._tools.http.post(address, body, headers, self._settings.timeout, tenant=tenant)
        if refused := _refusal(answer.body):
            raise SendFailed(f"Slack refused the message: {refused[:100]!r}")
        return f"answered {answer.status}"


def _refusal(body: bytes) -> str:
    """Methods of Slack's Web API answer 200 to what they refuse."""
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    return str(said.get("error", "without a reason")) if isinstance(said, dict) and said.get("ok") is False else ""
