# SPDX-License-Identifier: Apache-2.0
"""Runs the stages: reads the facts about a change, and stores the decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.alarms.notification_methods import NotificationMethod
from monasca_common.alarms.sent_notifications import changes_of
from monasca_common.alarms.silences import lasting
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka.clock import Clock
from monasca_common.notification.deferred import Deferred, DeferredNotifications, defer_again, end_withholding
from monasca_common.notification.ledger import FAILED, SENDING, SENT
from monasca_common.notification.notification import Notification
from monasca_common.notification.stages import (
    HELD,
    INHIBITED,
    LIMIT_KEY,
    OK,
    SILENCED,
    SUPPRESSION,
    ActiveAlarm,
    CurrentAlarm,
    Deferral,
    Facts,
    StageRules,
    decide,
)
from monasca_common.storage.sql import tables

_ALARM, _DEFINITION = tables.alarm, tables.alarm_definition
_METRIC, _DIMENSION, _NOTIFICATION = tables.alarm_metric, tables.alarm_dimension, tables.notification
# maximum number of values of a dimension in one change, because the number of statement parameters is limited
_MOST_VALUES = 500
_MOST_METRICS = 10_000  # maximum number of metrics that may inhibit one change
_MOST_WITHHELD = 100  # maximum number of changes of one alarm that are read, newest first

# The statement is built once, because building it takes longer than executing it. Among the rows of a change, the row
# of the method itself comes first, because methods can differ, for example after a resend. A method without a row uses
# the row of another method.
_BEFORE = (
    sa.select(*(_NOTIFICATION.c[name] for name in ("state", "new_state", "alarm_time", "change")))
    .where(
        _NOTIFICATION.c.alarm_id == sa.bindparam("of_alarm"),
        _NOTIFICATION.c.tenant == sa.bindparam("of_tenant"),
        _NOTIFICATION.c.alarm_time < sa.bindparam("at"),
    )
    .order_by(
        _NOTIFICATION.c.alarm_time.desc(),
        sa.case((_NOTIFICATION.c.method_id == sa.bindparam("to_method"), 0), else_=1),
        sa.case((_NOTIFICATION.c.state.in_((SILENCED, INHIBITED)), 2), (_NOTIFICATION.c.state == SENT, 1), else_=0),
    )
    .limit(1)
)


class Pipeline:
    """Applies the stages to stored facts. Thread-safe. Each call may raise `StorageError`. ``count``: counts
    deferrals."""

    def __init__(self, database: AlarmsDatabase, rules: StageRules, clock: Clock, count: Callable[[str], None]) -> None:
        self.deferred = DeferredNotifications(database)
        self._rules = rules
        self._database = database
        self._clock = clock
        self._count = count

    def facts(self, change: AlarmChange, method_ids: Sequence[str]) -> list[Facts]:
        """Return the facts for each method, in order."""
        return self._database.read(lambda connection: self._facts(connection, change, method_ids))

    def current(self, change: AlarmChange) -> CurrentAlarm | None:
        """Return the current state of the alarm, or ``None`` if the alarm has been deleted."""
        return self._database.read(lambda connection: _current(connection, change))

    def has_sent_later(self, change: AlarmChange, method_id: str) -> bool:
        """Return whether a later change of the alarm was sent to the method."""
        own = (_NOTIFICATION.c.alarm_id == change.alarm_id, _NOTIFICATION.c.tenant == change.tenant)
        later = (_NOTIFICATION.c.method_id == method_id, _NOTIFICATION.c.alarm_time > change.time_ms)
        statement = sa.select(_NOTIFICATION.c.id).where(*own, *later, _NOTIFICATION.c.state == SENT).limit(1)
        return bool(self._database.rows(statement))

    def defers(self, notification: Notification, method: NotificationMethod, facts: Facts) -> bool:
        """Decide on a new notification. Return ``True`` if it is not sent now, because it is deferred or has ended."""
        now_ms = self._clock.time_ms()
        deferral = decide(self._rules, facts, notification.change, now_ms) or self.limit(method.id)
        self.begin_repeats(notification, method, deferral)
        if deferral is None:
            return False
        state = self.deferred.defer(notification, method.id, deferral, now_ms)
        if state == deferral.state:
            self._count(state)
        return state not in (SENDING, FAILED)  # the process crashed during the attempt, which must continue

    def end_suppression(self, withheld: Deferred, method: NotificationMethod) -> bool:
        """Decide again on a silenced or inhibited notification. Return whether to send it now; otherwise it is deferred
        again or removed.

        One transaction decides and records: a change of the alarm commits before it, or waits and then finds the
        record.
        """
        change, now_ms = withheld.notification.change, self._clock.time_ms()

        def work(connection: sa.Connection) -> Deferral | None:
            alarm = _current(connection, change, lock=True)
            if alarm is None or not alarm.actions_enabled or not alarm.is_result_of(change):
                return Deferral(SILENCED, None, "the alarm has changed since")
            [facts] = self._facts(connection, change, [withheld.row.method_id])
            deferral = decide(self._rules, facts, change, now_ms)
            if deferral is None:
                end_withholding(connection, withheld.row)
            elif deferral.due_ms is not None:
                defer_again(connection, withheld.row, deferral, now_ms)
            return deferral

        deferral = self._database.write(work)
        if deferral is not None and deferral.due_ms is None:
            self.begin_repeats(withheld.notification, method, deferral)
            self.deferred.remove(withheld.row)
        return deferral is None

    def suppresses(self, member: Deferred, method: NotificationMethod) -> bool:
        """Decide again on a member of a group, because a silence or an inhibition may have begun while it waited."""
        deferral = self._suppression(member)
        if deferral is not None:
            self.begin_repeats(member.notification, method, deferral)
            self.deferred.defer_again(member.row, deferral, self._clock.time_ms())
        return deferral is not None

    def leaves_out(self, repeat: Deferred, alarm: CurrentAlarm) -> bool:
        """Return whether to skip a repeat that is due."""
        return (self._suppression(repeat, alarm) or self.limit(repeat.row.method_id)) is not None

    def _suppression(self, deferred: Deferred, repeated: CurrentAlarm | None = None) -> Deferral | None:
        change = deferred.notification.change
        [facts] = self.facts(change, [deferred.row.method_id])
        return decide(self._rules, replace(facts, repeated=repeated), change, self._clock.time_ms(), SUPPRESSION)

    def limit(self, method_id: str, *, is_digest: bool = False) -> Deferral | None:
        """Defer until the next minute if the limit of this minute is reached."""
        most, now_ms = self._rules.max_per_minute, self._clock.time_ms()
        due_ms = self.deferred.admit(method_id, most, now_ms, is_digest=is_digest) if most else None
        if due_ms is None:
            return None
        return Deferral(HELD, due_ms, f"the method gets at most {most} messages a minute", f"{LIMIT_KEY}{method_id}")

    def begin_repeats(self, first: Notification, method: NotificationMethod, deferral: Deferral | None = None) -> None:
        """Schedule the first repeat if the method has a period, and is notified now or already knows the state. Changes
        to OK are not repeated."""
        is_due_later = deferral is not None and deferral.due_ms is not None
        if method.period and not is_due_later and first.change.new_state != OK:
            now_ms = self._clock.time_ms()
            self.deferred.begin_repeats(first, method.id, now_ms + method.period * 1000, now_ms)

    def _facts(self, connection: sa.Connection, change: AlarmChange, method_ids: Sequence[str]) -> list[Facts]:
        silences = lasting(connection, change.tenant, self._clock.time_ms())
        active = self._active(connection, change)
        return [Facts(each, silences, active, *_notified(connection, change, each)) for each in method_ids]

    def _active(self, connection: sa.Connection, change: AlarmChange) -> Sequence[ActiveAlarm]:
        """Return alarms that may inhibit the change: sources of a rule, with the metrics that share a dimension."""
        rules = self._rules.inhibitions
        pairs = _pairs(change, {key for rule in rules for key in rule.equal})
        if not pairs:
            return ()
        sources = sa.or_(
            _DEFINITION.c.name.in_([rule.definition for rule in rules if rule.definition is not None]),
            _DEFINITION.c.severity.in_([rule.severity for rule in rules if rule.severity is not None]),
        )
        sharing = sa.select(_DIMENSION.c.alarm_id, _DIMENSION.c.series_id).where(
            _DIMENSION.c.tenant == change.tenant,
            sa.or_(*(sa.and_(_DIMENSION.c.name == key, _DIMENSION.c.value.in_(some)) for key, some in pairs.items())),
        )
        statement = (
            sa.select(_ALARM.c.id, _ALARM.c.definition_id, _DEFINITION.c.name, _DEFINITION.c.severity)
            .add_columns(_METRIC.c.dimensions)
            .join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)
            .join(_METRIC, _METRIC.c.alarm_id == _ALARM.c.id)
            .where(_ALARM.c.tenant == change.tenant, _ALARM.c.state == "ALARM", sources)
            .where(sa.tuple_(_METRIC.c.alarm_id, _METRIC.c.series_id).in_(sharing))
            .where(_ALARM.c.definition_id != change.definition_id)
            .order_by(_ALARM.c.id)
            .limit(_MOST_METRICS)
        )
        found = groupby(connection.execute(statement).all(), key=lambda row: tuple(row[:4]))
        return [
            ActiveAlarm(own_id, definition_id, name, severity, tuple(row.dimensions for row in rows))
            for (own_id, definition_id, name, severity), rows in found
        ]


def _current(connection: sa.Connection, change: AlarmChange, *, lock: bool = False) -> CurrentAlarm | None:
    """Return the current state of the alarm. ``lock``: prevent changes until this transaction ends."""
    columns = (_ALARM.c.state, _ALARM.c.state_updated, _ALARM.c.lifecycle_state, _DEFINITION.c.actions_enabled)
    joined = sa.select(*columns).join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)
    statement = joined.where(_ALARM.c.id == change.alarm_id, _ALARM.c.tenant == change.tenant)
    row = connection.execute(statement.with_for_update(read=True, of=_ALARM) if lock else statement).one_or_none()
    return None if row is None else CurrentAlarm(*row)


def _notified(connection: sa.Connection, change: AlarmChange, method_id: str) -> tuple[bool, str | None]:
    """Return whether the previous change was withheld, and the state in the last notification to the method. If several
    successive changes were withheld, this is the state before the first of them, provided that the change to that state
    was sent.
    """
    known: str | None = change.old_state
    at_ms, withheld = change.time_ms, 0
    while withheld < _MOST_WITHHELD:
        values = {"of_alarm": change.alarm_id, "of_tenant": change.tenant, "to_method": method_id, "at": at_ms}
        before = connection.execute(_BEFORE, values).one_or_none()
        if before is None or before.state not in (SILENCED, INHIBITED):
            known = known if before is None or before.state == SENT else None
            break
        changes = changes_of(before.change)
        known = changes[0].old_state if changes else OK
        at_ms, withheld = before.alarm_time, withheld + 1
    return withheld > 0, known


def _pairs(change: AlarmChange, keys: set[str]) -> Mapping[str, set[str]]:
    """Return the values of these dimensions in the change."""
    values: dict[str, set[str]] = defaultdict(set)
    for metric in change.metrics:
        for key in keys & metric.dimensions.keys():
            # Databases cannot store NUL, and refuse statements that contain it.
            if len(values[key]) < _MOST_VALUES and "\0" not in metric.dimensions[key]:
                values[key].add(metric.dimensions[key])
    return values
