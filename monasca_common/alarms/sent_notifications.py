# SPDX-License-Identifier: Apache-2.0
"""Reads the ledger of notifications for tenants and operators."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from monasca_common.alarms.address_keys import PLAIN, AddressKeys, AddressUnreadable
from monasca_common.alarms.database import AlarmsDatabase, Condition, Row, Slice, only_row
from monasca_common.alarms.notification_methods import NotificationMethod
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.storage.sql import tables

#: ``sending``: an attempt is in progress. ``failed``: another attempt follows. ``superseded``: the alarm changed before
#: an attempt succeeded. ``silenced``, ``inhibited`` and ``held``: the notification was deferred or skipped.
SENT_STATES = ("sending", "sent", "failed", "given up", "superseded", "silenced", "inhibited", "held")

_WHAT = "notification"
_NOTIFICATION, _METHOD = tables.notification, tables.notification_method
_OWN = ("id", "tenant", "alarm_id", "definition_id", "method_id", "new_state", "state", "attempts", "repeats")
_SELECT = sa.select(
    *(_NOTIFICATION.c[name] for name in (*_OWN, "failures")),
    _NOTIFICATION.c.alarm_time.label("alarm_ms"),
    _NOTIFICATION.c.reason.label("answer"),
    *(_NOTIFICATION.c[name].label(f"{name}_ms") for name in ("created", "updated")),
    *(_METHOD.c[name].label(f"method_{name}") for name in ("name", "type", "address", "address_key")),
).select_from(
    _NOTIFICATION.outerjoin(
        _METHOD, sa.and_(_METHOD.c.id == _NOTIFICATION.c.method_id, _METHOD.c.tenant == _NOTIFICATION.c.tenant)
    )
)


class FailedAttempt(msgspec.Struct, frozen=True):
    """A failed attempt. ``timestamp``: the time at which it ended, in ms."""

    timestamp: int
    answer: str | None


_FAILURES = msgspec.json.Decoder(FailedAttempt)


@dataclass(frozen=True, slots=True)
class WhichNotifications:
    """Filters for notifications. ``tenant``: ``None`` selects all tenants, for operators. ``start_ms`` and ``end_ms``:
    inclusive limits of the creation time."""

    tenant: str | None
    alarm_id: str | None = None
    definition_id: str | None = None
    method_id: str | None = None
    states: tuple[str, ...] = ()
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SentNotification:
    """A notification in the ledger. ``answer``: the receiver's response, or the reason why the notification was not
    sent. ``method_name`` to ``masked_address`` are ``None`` if the method was deleted. Times are in ms."""

    id: str
    tenant: str
    alarm_id: str
    definition_id: str | None
    method_id: str
    method_name: str | None
    method_type: str | None
    masked_address: str | None
    new_state: str
    alarm_ms: int
    state: str
    attempts: int
    repeats: int
    answer: str | None
    failures: tuple[FailedAttempt, ...]
    created_ms: int
    updated_ms: int


class SentNotifications:
    """Reads the notifications in the ledger."""

    def __init__(self, database: AlarmsDatabase, keys: AddressKeys = PLAIN) -> None:
        self._database = database
        self._keys = keys

    def found(self, which: WhichNotifications, part: Slice) -> list[SentNotification]:
        """Return notifications, the newest first."""
        statement = _SELECT.where(*_conditions(which)).order_by(_NOTIFICATION.c.created.desc(), _NOTIFICATION.c.id)
        rows = self._database.rows(statement.limit(part.limit).offset(part.offset))
        return [self._notification(row) for row in rows]

    def get(self, tenant: str | None, notification_id: str) -> SentNotification:
        """``tenant``: see `WhichNotifications`. Raises `UnknownId`."""
        statement = _SELECT.where(*_conditions(WhichNotifications(tenant)), _NOTIFICATION.c.id == notification_id)
        return self._notification(only_row(self._database.rows(statement), _WHAT, notification_id))

    def changes(self, notification_id: str) -> list[AlarmChange]:
        """Return the changes of a notification. A grouped notification has several. Raises `UnknownId`."""
        statement = sa.select(_NOTIFICATION.c.change).where(_NOTIFICATION.c.id == notification_id)
        return changes_of(only_row(self._database.rows(statement), _WHAT, notification_id).change)

    def _notification(self, row: Row) -> SentNotification:
        fields = row._asdict()
        del fields["method_address"], fields["method_address_key"]
        fields["failures"] = tuple(_FAILURES.decode_lines(row.failures or ""))
        return SentNotification(**fields, masked_address=self._masked(row))

    def _masked(self, row: Row) -> str | None:
        if row.method_address is None:
            return None
        try:
            address = self._keys.open(row.method_address, row.method_address_key)
        except AddressUnreadable:
            return "…"
        return NotificationMethod(row.method_name, row.method_type, address).masked_address


def _conditions(which: WhichNotifications) -> list[Condition]:
    equal: dict[sa.Column[Any], Any] = {
        _NOTIFICATION.c.tenant: which.tenant,
        _NOTIFICATION.c.alarm_id: which.alarm_id,
        _NOTIFICATION.c.definition_id: which.definition_id,
        _NOTIFICATION.c.method_id: which.method_id,
    }
    conditions: list[Condition] = [column == value for column, value in equal.items() if value is not None]
    if which.states:
        conditions.append(_NOTIFICATION.c.state.in_(which.states))
    if which.start_ms is not None:
        conditions.append(_NOTIFICATION.c.created >= which.start_ms)
    if which.end_ms is not None:
        conditions.append(_NOTIFICATION.c.created <= which.end_ms)
    return conditions


def changes_of(stored: bytes | None) -> list[AlarmChange]:
    """Return the changes in the column ``change`` of a row."""
    return [AlarmChange.read(line) for line in zlib.decompress(stored).splitlines()] if stored is not None else []
