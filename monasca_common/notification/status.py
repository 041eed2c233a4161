# SPDX-License-Identifier: Apache-2.0
"""The metrics of the notification service, and whether it works."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from prometheus_client.core import Metric

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.kafka.clock import Clock
from monasca_common.notification.ledger import NOTIFICATION
from monasca_common.notification.member import NotificationMember
from monasca_common.runtime.health import ServiceHealth, liveness, readiness
from monasca_common.runtime.metrics import ServiceMetrics, gauge_family
from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql import tables

LOG = logging.getLogger(__name__)

_PREFIX = "monasca_notification"
# From the change of an alarm, which is dated by its measurements, to the receiver's answer.
_DELAY_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14_400.0)
_BY_TYPE = {
    "sent": ("sent", "Notifications that a receiver has taken"),
    "failed attempts": ("failed_attempts", "Attempts that failed"),
    "repeated": ("repeated", "Attempts after one whose outcome a crash hid"),
}
_ANY = {
    "given up": ("given_up", "Notifications that became dead letters, or whose method was deleted"),
    "superseded": ("superseded", "Notifications whose alarm changed before an attempt succeeded"),
    "silenced": ("silenced", "Notifications that a silence withheld"),
    "inhibited": ("inhibited", "Notifications that an inhibition withheld"),
    "held": ("held", "Notifications that waited for a group or a limit"),
    "too old": ("too_old", "Changes that were older than ttl"),
    "too late": ("too_late", "Repeats that waited longer than their period"),
}
_COUNT_SECONDS = 10.0  # so often the database is asked at most, however often somebody looks


class NotificationMetrics(ServiceMetrics):
    """Counts; any thread may call it. A process that takes another's place begins at 0.

    ``types``: of methods, whose counters are served from 0: Prometheus compares no series that is not there yet.
    """

    def __init__(self, types: Iterable[str] = ()) -> None:
        super().__init__(_PREFIX)
        self._by_type = {what: self.counter(*told, "type") for what, told in _BY_TYPE.items()}
        self._any = {what: self.counter(*told) for what, told in _ANY.items()}
        text = "From the change of an alarm to the receiver's answer"
        self._delay = self.histogram("delay_seconds", text, "type", buckets=_DELAY_SECONDS)
        for each in types:
            self._begin(each.lower())

    def count(self, what: str, type: str = "") -> None:  # noqa: A002 - what a method calls it
        if what in self._by_type:
            self._begin(type.lower())
            self._by_type[what].labels(type.lower()).inc()
        elif what in self._any:
            self._any[what].inc()

    def took(self, type: str, seconds: float) -> None:  # noqa: A002
        self._delay.labels(type.lower()).observe(max(0.0, seconds))

    def _begin(self, type: str) -> None:  # noqa: A002
        for metric in (*self._by_type.values(), self._delay):
            metric.labels(type)


class WaitingNotifications:
    """How much waits in the database, of all processes. An unavailable database leaves it out."""

    def __init__(self, database: AlarmsDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._counted: dict[str, int] = {}
        self._next = 0.0

    def families(self) -> Iterator[Metric]:
        """For `ServiceMetrics.computed`."""
        if self._clock.monotonic() >= self._next:
            try:
                self._counted = self._count()
            except StorageError as error:
                LOG.warning("what waits is not counted: %s", error)
                self._counted = {}
            self._next = self._clock.monotonic() + _COUNT_SECONDS
        samples = (((where,), number) for where, number in self._counted.items())
        yield gauge_family(f"{_PREFIX}_waiting", "What waits in the database", ("where",), samples)

    def _count(self) -> dict[str, int]:
        outbox = tables.alarm_outbox
        counted = {
            "retries": sa.select(sa.func.count()).select_from(tables.notification_waiting),
            "held": sa.select(sa.func.count()).select_from(tables.notification_held),
            "announcements": sa.select(sa.func.count()).where(outbox.c.kind == NOTIFICATION),
        }
        return {where: int(self._database.rows(statement)[0][0]) for where, statement in counted.items()}


def service_health(members: Sequence[NotificationMember]) -> ServiceHealth:
    """Return the answers to probes."""
    return ServiceHealth(
        "notification",
        health(members),
        liveness(lambda: {member.name: member.turn_seconds for member in members}),
        readiness(lambda: (f"{member.name}: {reason}" for member in members if (reason := member.unready()))),
    )


def health(members: Sequence[NotificationMember]) -> Callable[[], tuple[bool, dict[str, Any]]]:
    """Whether each member reads its topic, and the reason of one that does not."""

    def look() -> tuple[bool, dict[str, Any]]:
        troubles = {member.name: member.trouble for member in members}
        healthy = not any(troubles.values())
        shown = {
            name: {"state": "waiting" if trouble else "running", "reason": trouble}
            for name, trouble in troubles.items()
        }
        return healthy, {"healthy": healthy, "members": shown}

    return look
