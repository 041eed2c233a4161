# SPDX-License-Identifier: Apache-2.0
"""Lists, counts, changes and deletes alarms in the database, for the API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms import alarm_queries, outbox
from monasca_common.alarms.alarm_queries import WhichAlarms
from monasca_common.alarms.database import AlarmsDatabase, Row, Select, Slice, Sort, delete_one, of_tenant, only_row
from monasca_common.alarms.definition_tables import next_version
from monasca_common.alarms.definitions import STATES
from monasca_common.alarms.errors import refuse
from monasca_common.alarms.transitions import BY_HAND, AlarmChange, AlarmedMetric
from monasca_common.models.limits import TextRule
from monasca_common.storage.sql import tables

LIFECYCLE_STATE = TextRule(least=0, most=50)
LINK = TextRule(least=0, most=512)

_WHAT = "alarm"
_ALARMS_A_STEP, _METRICS_A_STEP = 50, 20_000
_CHANGING = ("state", "lifecycle_state", "link", "state_updated", "updated")
_ALARM, _SUB_ALARM, _DEFINITION = tables.alarm, tables.sub_alarm, tables.alarm_definition
_METRIC, _DIMENSION = tables.alarm_metric, tables.alarm_dimension
_PART, _SERIES, _WINDOW = tables.alarm_part, tables.alarm_series, tables.alarm_window


@dataclass(frozen=True, slots=True)
class StoredAlarm:
    """Times are in ms."""

    id: str
    definition_id: str
    definition_name: str
    severity: str
    state: str
    lifecycle_state: str | None
    link: str | None
    state_updated: int
    updated: int
    created: int
    metrics: tuple[AlarmedMetric, ...] = ()


class Alarms:
    """The alarms in the database. Each call accesses only those of its tenant."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database

    def iter_found(self, which: WhichAlarms, sorts: Sequence[Sort], part: Slice) -> Generator[StoredAlarm]:
        """Yield alarms. The caller must close the generator. Metrics are loaded for only a few alarms at a time, or for
        one if they have many, because an alarm can have any number of metrics."""
        statement = alarm_queries.alarms(which, sorts, part)

        def work(connection: sa.Connection) -> Iterator[StoredAlarm]:
            rows = connection.execute(statement).all()
            for start in range(0, len(rows), _ALARMS_A_STEP):
                some = rows[start : start + _ALARMS_A_STEP]
                of_alarms = _METRIC.c.alarm_id.in_([row.id for row in some])
                count = connection.execute(sa.select(sa.func.count()).where(of_alarms)).scalar_one()
                size = len(some) if count <= _METRICS_A_STEP else 1
                for first in range(0, len(some), size):
                    yield from self._alarms(connection, some[first : first + size])

        return self._database.stream(work)

    def counts(self, which: WhichAlarms, group_by: Sequence[str], part: Slice) -> list[list[Any]]:
        return [list(row) for row in self._database.rows(alarm_queries.counts(which, group_by, part))]

    def get(self, tenant: str, alarm_id: str) -> StoredAlarm:
        """Raises `UnknownId`."""
        return self._database.read(lambda connection: self._one(connection, tenant, alarm_id))

    def change(
        self, tenant: str, alarm_id: str, changed: Callable[[StoredAlarm], StoredAlarm], now_ms: int
    ) -> tuple[StoredAlarm, bool]:
        """Change an alarm with ``changed``. Return the new alarm, and whether its state changed and a transition was
        written. Raises `UnknownId`, `BrokenRules`."""

        def work(connection: sa.Connection) -> tuple[StoredAlarm, bool]:
            own = of_tenant(_ALARM, tenant, alarm_id)
            connection.execute(sa.select(_ALARM.c.id).where(*own).with_for_update())
            before = self._one(connection, tenant, alarm_id)
            after = changed(before)
            _check(after)
            # Each state change is later than the previous one, so that each change has its own id.
            time_ms = max(now_ms, before.state_updated + 1)
            is_transition = after.state != before.state
            if is_transition:
                after = replace(after, state_updated=time_ms)
                outbox.put(connection, [_change(connection, tenant, before, after)])
            after = replace(after, updated=max(now_ms, before.updated))
            values = {name: getattr(after, name) for name in _CHANGING}
            connection.execute(_ALARM.update().where(*own).values(values))
            return after, is_transition

        return self._database.write(work)

    def delete(self, tenant: str, alarm_id: str) -> None:
        """Delete the alarm, but keep its history. Raises `UnknownId`."""

        def work(connection: sa.Connection) -> None:
            # A merge of measurements locks the version, so no alarm is deleted during the merge.
            next_version(connection)
            delete_one(connection, _ALARM, tenant, alarm_id, _WHAT)
            _forget_series(connection, alarm_id)
            for table in (_METRIC, _DIMENSION, _SUB_ALARM, _PART):
                connection.execute(table.delete().where(table.c.alarm_id == alarm_id))

        self._database.write(work)

    def _one(self, connection: sa.Connection, tenant: str, alarm_id: str) -> StoredAlarm:
        row = only_row(connection.execute(alarm_queries.one(tenant, alarm_id)), _WHAT, alarm_id)
        return self._alarms(connection, [row])[0]

    def _alarms(self, connection: sa.Connection, rows: Sequence[Row]) -> list[StoredAlarm]:
        """Return the alarms of these rows, with their metrics."""
        metrics: Mapping[str, list[AlarmedMetric]] = defaultdict(list)
        for alarm_id, name, dimensions in connection.execute(alarm_queries.metrics([row.id for row in rows])):
            metrics[alarm_id].append(AlarmedMetric(name, dimensions))
        return [StoredAlarm(**row._asdict(), metrics=tuple(metrics[row.id])) for row in rows]


def _forget_series(connection: sa.Connection, alarm_id: str) -> None:
    """Delete the series that no other alarm has, and their windows. If such a series still arrives, it counts as new
    and recreates the alarm, without earlier measurements, because ``last`` would report them again."""
    own, other = _PART.alias(), _PART.alias()
    names = ("sub_expression_id", "match_key")
    same = (own.c[name] == other.c[name] for name in names)
    others = sa.exists().where(other.c.alarm_id != alarm_id, *same)
    its_own: Select = sa.select(*(own.c[name] for name in names)).where(own.c.alarm_id == alarm_id, ~others)
    for table in (_SERIES, _WINDOW):
        key = sa.tuple_(*(table.c[name] for name in names))
        connection.execute(table.delete().where(key.in_(its_own)))


def _check(alarm: StoredAlarm) -> None:
    broken = [] if alarm.state in STATES else [("state", f"is not one of {', '.join(STATES)}")]
    for name, rule, text in (("lifecycle_state", LIFECYCLE_STATE, alarm.lifecycle_state), ("link", LINK, alarm.link)):
        broken += [(name, fault) for fault in rule.faults(text or "")]
    refuse(broken)


def _change(connection: sa.Connection, tenant: str, before: StoredAlarm, after: StoredAlarm) -> AlarmChange:
    columns = (_DEFINITION.c.description, _DEFINITION.c.actions_enabled)
    description, enabled = connection.execute(sa.select(*columns).where(_DEFINITION.c.id == after.definition_id)).one()
    return AlarmChange(
        tenant=tenant,
        alarm_id=after.id,
        definition_id=after.definition_id,
        name=after.definition_name,
        description=description,
        severity=after.severity,
        actions_enabled=enabled,
        old_state=before.state,
        new_state=after.state,
        reason=BY_HAND,
        time_ms=after.state_updated,
        link=after.link,
        lifecycle_state=after.lifecycle_state,
        metrics=after.metrics,
    ).bounded()
