# SPDX-License-Identifier: Apache-2.0
"""Push notifications through an ntfy server: a notifier that another package adds to monasca-common."""

import json
import re

from oslo_config import cfg

from monasca_common.notification.errors import AddressRefused
from monasca_common.notification.notification import Notification
from monasca_common.notification.notifiers.base import Notifier, Tools

OPTIONS = (cfg.FloatOpt("timeout", default=10.0, min=0.1, help="The maximum duration of an attempt, in seconds."),)
MAX_TEXT = 3500  # maximum characters; the server stores a longer message as an attachment

_TOPIC = re.compile(r"(?P<server>https?://[^/?#@\s]+/)(?P<topic>[A-Za-z0-9_-]{1,64})")
_FORM = "is not the URL of a topic, such as https://ntfy.sh/alarms"
_PRIORITIES = {"LOW": 2, "MEDIUM": 3, "HIGH": 4, "CRITICAL": 5}


class NtfyNotifier(Notifier):
    def __init__(self, timeout: float, tools: Tools) -> None:
        self._timeout = timeout
        self._tools = tools

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts, tools: Tools) -> "NtfyNotifier":
        conf.register_opts(OPTIONS, group="ntfy_notifier")
        return cls(conf.ntfy_notifier.timeout, tools)

    @classmethod
    def address_fault(cls, address: str) -> str | None:
        return None if _TOPIC.fullmatch(address) else _FORM

    def send(self, notification: Notification, address: str) -> str:
        form = _TOPIC.fullmatch(address)
        if form is None:
            raise AddressRefused(f"the address {_FORM}")
        change, texts = notification.change, self._tools.texts
        document = {
            "topic": form["topic"],
            "title": texts.subject(notification),
            "message": texts.text(notification)[:MAX_TEXT],
            "priority": 3 if change.new_state == "OK" else _PRIORITIES.get(change.severity, 3),
        }
        headers = {"Idempotency-Key": notification.id}
        body = json.dumps(document).encode()
        # Checks the address, sends, and raises SendFailed unless the server returns a success status.
        answer = self._tools.http.post(form["server"], body, headers, self._timeout)
        return f"responded with {answer.status}"
