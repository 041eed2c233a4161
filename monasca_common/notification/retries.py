# SPDX-License-Identifier: Apache-2.0
"""Attempts to send a notification: rows of ``notification_deferred`` until they are due, then messages of the retry
topic. They name the method and not its address."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.alarms.transitions import AlarmChange
from monasca_common.models import json_text
from monasca_common.models.errors import Violation
from monasca_common.models.fields import Fields
from monasca_common.models.limits import NON_EMPTY
from monasca_common.notification.errors import storable
from monasca_common.notification.notification import Notification

FIRST = 1  # attempt


@dataclass(frozen=True, slots=True)
class Retry:
    """``due_ms``: when its row is published; a message does not contain it. ``reason``: why the attempt before failed.
    ``members``: the number of changes; those of a group are in the database. ``waits_since_ms``: when the notification
    was first returned without an attempt; 0: an attempt failed. ``expires_ms``: after this time a repeat without an
    attempt is not sent; 0: never.
    """

    notification: Notification
    method_id: str
    attempt: int
    due_ms: int
    reason: str
    members: int = 1
    waits_since_ms: int = 0
    expires_ms: int = 0

    @property
    def id(self) -> str:
        return f"{self.notification.id}/{self.attempt}"

    @property
    def message(self) -> bytes:
        change = json_text.read(self.notification.change.message)
        facts = {
            "id": self.notification.id,
            "method_id": self.method_id,
            "attempt": self.attempt,
            "reason": storable(self.reason),
            "members": max(self.members, len(self.notification.changes)),
            "waits_since": self.waits_since_ms,
            "expires": self.expires_ms,
        }
        return json_text.write({**change, **facts})

    @classmethod
    def read(cls, value: bytes | None) -> Retry:
        """Read a message. Raises `InvalidEnvelope`."""
        violations: list[Violation] = []
        fields = Fields.read(value, violations)
        notification_id = fields.text("id", NON_EMPTY) or ""
        method_id = fields.text("method_id", NON_EMPTY) or ""
        attempt = fields.parsed("attempt", _count) or 1
        reason = fields.text("reason", required=False) or ""
        members = fields.parsed("members", _count, required=False) or 1
        since_ms = fields.parsed("waits_since", _count, required=False) or 0
        expires_ms = fields.parsed("expires", _count, required=False) or 0
        fields.raise_violations()
        notification = Notification(notification_id, AlarmChange.read(value))
        return cls(notification, method_id, attempt, 0, reason, members, since_ms, expires_ms)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("must be a whole number, 0 or greater")
    return value
