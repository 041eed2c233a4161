# SPDX-License-Identifier: Apache-2.0
"""Whether a notification is sent now: what is stored about its change, read for the rules of calm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby

import sqlalchemy as sa

from monasca_common.alarms.database import AlarmsDatabase, Row
from monasca_common.alarms.notification_methods import NotificationMethod
from monasca_common.alarms.sent_notifications import changes_of
from monasca_common.alarms.silence_tables import lasting
from monasca_common.alarms.transitions import AlarmChange
from monasca_common.kafka.clock import Clock
from monasca_common.notification import calm
from monasca_common.notification.calm import (
    HELD,
    INHIBITED,
    OK,
    SILENCED,
    ActiveAlarm,
    CalmRules,
    ChangeFacts,
    CurrentAlarm,
    Hold,
)
from monasca_common.notification.held import HeldNotice, HeldNotices, release, remove, withhold_again
from monasca_common.notification.ledger import FAILED, SENDING, SENT
from monasca_common.notification.notice import Notice
from monasca_common.storage.sql import tables

_ALARM, _DEFINITION = tables.alarm, tables.alarm_definition
_METRIC, _DIMENSION, _NOTIFICATION = tables.alarm_metric, tables.alarm_dimension, tables.notification
_MOST_VALUES = 500  # of a dimension, in one change: a statement has a bounded number of them
_MOST_METRICS = 10_000  # of the alarms that may inhibit one change
_MOST_WITHHELD = 100  # changes of one alarm that are looked at, one after the other


# Made once, because making it takes longer than reading. Of one change, the row of the method itself comes first,
# because methods can differ, as after a resend. A method that has none takes that of another method.
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


class NoticePlanner:
    """Several threads call it at once. Each call raises `StorageError`. ``count``: of what becomes of notifications."""

    def __init__(self, database: AlarmsDatabase, rules: CalmRules, clock: Clock, count: Callable[[str], None]) -> None:
        self.rules = rules
        self.held = HeldNotices(database)
        self._database = database
        self._clock = clock
        self._count = count

    def facts(self, change: AlarmChange, method_ids: Sequence[str]) -> list[ChangeFacts]:
        """For each of the methods, in their order."""
        return self._database.read(lambda connection: self._facts(connection, change, method_ids))

    def current(self, change: AlarmChange) -> CurrentAlarm | None:
        """``None``: there is no such alarm any more."""
        return self._database.read(lambda connection: _current(connection, change))

    def end_suppression(self, withheld: HeldNotice, method: NotificationMethod | None) -> bool | None:
        """Return whether it is sent now, which the ledger says then; else it is withheld further, or removed. ``None``:
        nothing is decided, because the alarm is changing.

        One transaction decides. A change of the alarm comes before it, or waits for it and finds what it recorded.
        """
        change, now_ms = withheld.notice.change, self._clock.time_ms()

        def work(connection: sa.Connection) -> bool | None:
            current = _current(connection, change, lock=True)
            if current is None and _current(connection, change) is not None:
                return None
            [facts] = self._facts(connection, change, [withheld.row.method_id])
            stands = current is not None and current.actions_enabled and calm.stands(current, change)
            hold = calm.suppression(self.rules, facts, change, now_ms) if stands else None
            if method is None or not stands or (hold is None and not calm.is_news(change, facts)):
                remove(connection, withheld.row)
                return False
            hold = hold or calm.grouping(self.rules, change, method.id, now_ms)
            if hold is None:
                release(connection, withheld.row)
            else:
                withhold_again(connection, withheld.row, hold, now_ms)
            return hold is None

        return self._database.write(work)

    def _facts(self, connection: sa.Connection, change: AlarmChange, method_ids: Sequence[str]) -> list[ChangeFacts]:
        silences = lasting(connection, change.tenant, self._clock.time_ms())
        active = self._active(connection, change)
        return [ChangeFacts(silences, active, *_told(connection, change, each)) for each in method_ids]

    def withholds(self, notice: Notice, method: NotificationMethod, facts: ChangeFacts) -> bool:
        """Whether nothing is to be sent now: then it is recorded, with what is to come of it."""
        now_ms = self._clock.time_ms()
        hold = calm.plan(self.rules, facts, notice.change, method.id, now_ms) or self.limit(method.id)
        if hold is None:
            self.begin_repeats(notice, method)
            return False
        found = self.held.withhold(notice, method.id, hold, now_ms)
        if found == hold.state:
            self._count(hold.state)
        return found not in (SENDING, FAILED)  # of a crash: a retry must follow

    def limit(self, method_id: str, *, is_digest: bool = False) -> Hold | None:
        """Why the method gets no further message in this minute."""
        most, now_ms = self.rules.max_per_minute, self._clock.time_ms()
        due_ms = self.held.admit(method_id, most, now_ms, is_digest=is_digest) if most else None
        if due_ms is None:
            return None
        return Hold(HELD, due_ms, f"the method gets {most} a minute", f"{calm.LIMIT_KEY}{method_id}")

    def begin_repeats(self, notice: Notice, method: NotificationMethod) -> None:
        if calm.repeats(notice.change, method.period):
            now_ms = self._clock.time_ms()
            self.held.repeat(notice, method.id, now_ms + method.period * 1000, now_ms)

    def _active(self, connection: sa.Connection, change: AlarmChange) -> Sequence[ActiveAlarm]:
        """Those that may inhibit it: of a source of a rule, and with one of its dimensions."""
        rules = self.rules.inhibitions
        pairs = _pairs(change, {key for rule in rules for key in rule.equal})
        if not pairs:
            return ()
        sources = sa.or_(
            _DEFINITION.c.name.in_([rule.definition for rule in rules if rule.definition is not None]),
            _DEFINITION.c.severity.in_([rule.severity for rule in rules if rule.severity is not None]),
        )
        shares = sa.exists().where(
            _DIMENSION.c.alarm_id == _ALARM.c.id,
            _DIMENSION.c.tenant == change.tenant,
            sa.or_(*(sa.and_(_DIMENSION.c.name == key, _DIMENSION.c.value.in_(some)) for key, some in pairs.items())),
        )
        statement = (
            sa.select(_ALARM.c.id, _ALARM.c.definition_id, _DEFINITION.c.name, _DEFINITION.c.severity)
            .add_columns(_METRIC.c.dimensions)
            .join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)
            .join(_METRIC, _METRIC.c.alarm_id == _ALARM.c.id)
            .where(_ALARM.c.tenant == change.tenant, _ALARM.c.state == "ALARM", sources, shares)
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
    """``lock``: the alarm changes only after this transaction; ``None`` if another transaction is changing it."""
    columns = (_ALARM.c.state, _ALARM.c.state_updated, _ALARM.c.lifecycle_state, _DEFINITION.c.actions_enabled)
    joined = sa.select(*columns).join(_DEFINITION, _DEFINITION.c.id == _ALARM.c.definition_id)
    statement = joined.where(_ALARM.c.id == change.alarm_id, _ALARM.c.tenant == change.tenant)
    row = connection.execute(
        statement.with_for_update(read=True, of=_ALARM, skip_locked=True) if lock else statement
    ).one_or_none()
    return None if row is None else CurrentAlarm(*row)


def _told(connection: sa.Connection, change: AlarmChange, method_id: str) -> tuple[bool, str | None]:
    """Whether the change before was withheld; and the state that the method's people believe the alarm is in.

    That is the state before the earliest of an unbroken run of withheld changes, if the one before that was sent.
    """
    believed: str | None = change.old_state
    at_ms, withheld = change.time_ms, 0
    while withheld < _MOST_WITHHELD:
        values = {"of_alarm": change.alarm_id, "of_tenant": change.tenant, "to_method": method_id, "at": at_ms}
        before = connection.execute(_BEFORE, values).one_or_none()
        if before is None or before.state not in (SILENCED, INHIBITED):
            believed = believed if before is None or before.state == SENT else None
            break
        believed, at_ms, withheld = _old_state(before), before.alarm_time, withheld + 1
    return withheld > 0, believed


def _old_state(row: Row) -> str:
    changes = changes_of(row.change)
    return changes[0].old_state if changes else OK  # without a change, it was recorded before there were silences


def _pairs(change: AlarmChange, keys: set[str]) -> dict[str, list[str]]:
    """The values of these dimensions."""
    values: dict[str, dict[str, None]] = defaultdict(dict)
    for metric in change.metrics:
        for key in keys & metric.dimensions.keys():
            # No stored dimension has a NUL, and a database takes no statement with one.
            if len(values[key]) < _MOST_VALUES and "\0" not in metric.dimensions[key]:
                values[key][metric.dimensions[key]] = None
    return {key: list(some) for key, some in values.items()}
