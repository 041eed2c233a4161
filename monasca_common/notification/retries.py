# SPDX-License-Identifier: Apache-2.0
"""The messages of the retry topic: an attempt that is due at a time. They name the method, and not its address."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka.message import Record
from monasca_common.models import json_text
from monasca_common.models.errors import Violation
from monasca_common.models.fields import Fields
from monasca_common.models.limits import NON_EMPTY
from monasca_common.notification.errors import storable
from monasca_common.notification.notification import Notification

FIRST = 1  # attempt


@dataclass(frozen=True, slots=True)
class Retry:
    """``reason``: why the attempt before it failed. ``members``: how many changes the notification has; those of a
    group are in the database. ``waits_since_ms``: when it first came back without an attempt; 0: an attempt failed.
    ``expires_ms``: when a repeat that was not attempted is left out; 0: never.

    Its key is the notification's id, so that no retry waits for another.
    """

    notification: Notification
    method_id: str
    attempt: int
    not_before_ms: int
    reason: str
    members: int = 1
    waits_since_ms: int = 0
    expires_ms: int = 0

    def record(self) -> Record:
        change = json_text.read(self.notification.change.message)
        facts = {
            "id": self.notification.id,
            "method_id": self.method_id,
            "attempt": self.attempt,
            "not_before": self.not_before_ms,
            "reason": storable(self.reason),
            "members": max(self.members, len(self.notification.changes)),
            "waits_since": self.waits_since_ms,
            "expires": self.expires_ms,
        }
        own_id = f"{self.notification.id}/{self.attempt}/{self.not_before_ms}".encode()
        return Record(json_text.write({**change, **facts}), key=self.notification.id.encode(), message_id=own_id)

    @classmethod
    def read(cls, value: bytes | None) -> Retry:
        """Raises `InvalidEnvelope`."""
        violations: list[Violation] = []
        fields = Fields.read(value, violations)
        notification_id = fields.text("id", NON_EMPTY) or ""
        method_id = fields.text("method_id", NON_EMPTY) or ""
        attempt = fields.parsed("attempt", _count) or 1
        not_before_ms = fields.parsed("not_before", _count) or 0
        reason = fields.text("reason", required=False) or ""
        members = fields.parsed("members", _count, required=False) or 1
        since_ms = fields.parsed("waits_since", _count, required=False) or 0
        expires_ms = fields.parsed("expires", _count, required=False) or 0
        fields.raise_violations()
        notification = Notification(notification_id, AlarmChange.read(value))
        return cls(notification, method_id, attempt, not_before_ms, reason, members, since_ms, expires_ms)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("must be a whole number, 0 or greater")
    return value
