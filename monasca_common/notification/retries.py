# SPDX-License-Identifier: Apache-2.0
"""Scheduled attempts: rows of ``notification_deferred`` until they are due. A row contains the method's id, not its
address, so that an attempt uses the current address."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.alarms.transitions import AlarmChange
from monasca_common.models import json_text
from monasca_common.notification.notification import Notification

FIRST = 1  # attempt


@dataclass(frozen=True, slots=True)
class Retry:
    """A scheduled attempt.

    ``members``: the number of changes; the changes of a group are in the database. ``waits_since_ms``: the time since
    which no attempt was possible, or 0 if the last attempt failed. ``expires_ms``: a repeat that has had no attempt by
    this time is not sent; 0 for no limit. ``claim``: the id of its claim, which stays in its row until another process
    takes it over.
    """

    notification: Notification
    method_id: str
    attempt: int
    due_ms: int
    members: int = 1
    waits_since_ms: int = 0
    expires_ms: int = 0
    claim: str = ""

    @property
    def id(self) -> str:
        return f"{self.notification.id}/{self.attempt}"

    @property
    def value(self) -> bytes:
        """Return the change, with the facts that have no column."""
        members = max(self.members, len(self.notification.changes))
        facts = {"members": members, "waits_since": self.waits_since_ms, "expires": self.expires_ms}
        return json_text.write({**json_text.read(self.notification.change.message), **facts})

    @classmethod
    def read(cls, notification_id: str, method_id: str, attempt: int, due_ms: int, value: bytes) -> Retry:
        facts = json_text.read(value)
        notification = Notification(notification_id, AlarmChange.read(value))
        members, since_ms, expires_ms = facts["members"], facts["waits_since"], facts["expires"]
        return cls(notification, method_id, attempt, due_ms, members, since_ms, expires_ms)
