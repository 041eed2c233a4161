# SPDX-License-Identifier: Apache-2.0
"""The metrics of the notification service."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.notification.deferred import SCHEDULED
from monasca_common.runtime.metrics import Sample, ServiceMetrics
from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

_PREFIX = "monasca_notification"
# The time from the change of an alarm (the time of its measurements) to the receiver's response.
_DELAY_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14_400.0)
_BY_TYPE = {
    "sent": ("sent", "Notifications that a receiver accepted"),
    "failed attempts": ("failed_attempts", "Failed attempts; most are repeated"),
    "repeated": ("repeated", "Attempts repeated because a crash hid the outcome; the receiver may get two messages"),
}
_OTHERS = {
    "given up": ("given_up", "Notifications that were given up"),
    "superseded": ("superseded", "Notifications whose alarm changed before an attempt succeeded"),
    "silenced": ("silenced", "Notifications suppressed by a silence"),
    "inhibited": ("inhibited", "Notifications suppressed by an inhibition"),
    "held": ("held", "Notifications deferred because of a group or a limit"),
    "too old": ("too_old", "Transitions older than ttl, without notification"),
    "too late": ("too_late", "Repeats dropped because they waited longer than their period"),
}


class NotificationMetrics(ServiceMetrics):
    """The metrics of a process. Thread-safe. ``types``: the method types, whose series exist from the start."""

    def __init__(self, types: Iterable[str] = ()) -> None:
        super().__init__(_PREFIX)
        known = [each.lower() for each in types]
        self._by_type = {what: self.counter(*facts, "type", known=known) for what, facts in _BY_TYPE.items()}
        self._others = {what: self.counter(*facts) for what, facts in _OTHERS.items()}
        text = "Seconds from a transition's measurements to the receiver's response"
        self._delay = self.histogram("delay_seconds", text, "type", buckets=_DELAY_SECONDS)
        for each in known:
            self._delay.labels(each)

    def count(self, what: str, type: str = "") -> None:  # noqa: A002 - the word of the API
        counter = self._by_type[what].labels(type.lower()) if what in self._by_type else self._others[what]
        counter.inc()

    def took(self, type: str, seconds: float) -> None:  # noqa: A002
        self._delay.labels(type.lower()).observe(max(0.0, seconds))


def serve_stored(metrics: ServiceMetrics, database: AlarmsDatabase) -> None:
    """Serve the number of rows that all processes have stored until they are due. There is no sample while the database
    is unavailable."""
    kind = tables.notification_deferred.c.kind

    def samples() -> list[Sample]:
        try:
            rows = database.rows(sa.select(kind, sa.func.count()).group_by(kind))
        except StorageError as error:
            LOG.warning("stored notifications cannot be counted: %s", error)
            return []
        retries = sum(count for kind, count in rows if kind == SCHEDULED)
        return [(("retries",), retries), (("held",), sum(count for _, count in rows) - retries)]

    text = "Notifications stored in the database until they are due: retries, and deferred notifications (held)"
    metrics.computed_gauge("waiting", text, "where", samples=samples)
