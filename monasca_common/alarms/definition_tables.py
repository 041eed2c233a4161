# SPDX-License-Identifier: Apache-2.0
"""Stores alarm definitions. The transaction of each change first increments the version of all definitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from monasca_common.alarms.database import (
    AlarmsDatabase,
    Condition,
    Row,
    Select,
    Slice,
    Sort,
    delete_one,
    new_id,
    of_tenant,
    only_row,
    ordered,
)
from monasca_common.alarms.definitions import (
    AlarmDefinition,
    DefinitionFilter,
    StoredSubExpression,
    checked,
    paired,
    refused_changes,
)
from monasca_common.alarms.errors import refuse
from monasca_common.alarms.evaluation import RESTRUCTURED
from monasca_common.alarms.expression import SubExpression, parse
from monasca_common.storage.sql import schema, tables
from monasca_common.storage.sql.connections import snapshot
from monasca_common.storage.sql.queries import Queries

_WHAT = "alarm definition"
_DEFINITIONS_A_STEP = 50
_DEFINITION, _SUB, _ACTION = tables.alarm_definition, tables.alarm_sub_expression, tables.alarm_action
_VERSION, _METHOD = tables.alarm_definitions_version, tables.notification_method
_ALARM, _SUB_ALARM, _CHANGED = tables.alarm, tables.sub_alarm, tables.alarm_changed
_OF_ALARMS = (tables.alarm_metric, tables.alarm_dimension, _SUB_ALARM, tables.alarm_part)
_OF_SUB_EXPRESSIONS = (tables.alarm_series, tables.alarm_window)
_OWN = ("name", "description", "expression", "severity", "actions_enabled", "deterministic")
_SELECT = sa.select(*(_DEFINITION.c[name] for name in ("id", *_OWN, "match_by")))
_SORTED_BY = {
    **{name: _DEFINITION.c[name] for name in ("id", "name", "severity")},
    "created_at": _DEFINITION.c.created,
    "updated_at": _DEFINITION.c.updated,
}
_OF_EXPRESSION = ("function", "metric_name", "deterministic", "operator", "threshold", "period", "periods")


def next_version(connection: sa.Connection) -> None:
    """Increment the version. A transaction that changes definitions or deletes alarms executes this first, so only one
    such transaction runs at a time."""
    connection.execute(_VERSION.update().values(version=_VERSION.c.version + 1))


class AlarmDefinitions:
    """The definitions in the database. Each call accesses only those of its tenant."""

    def __init__(self, database: AlarmsDatabase) -> None:
        self._database = database
        self._queries = Queries(database.dialect)

    def iter_found(self, which: DefinitionFilter, sorts: Sequence[Sort], part: Slice) -> Generator[AlarmDefinition]:
        """Yield definitions. The caller must close the generator. Only a few definitions are loaded at a time, because
        an expression can be 16 KiB long."""
        wanted: Select = sa.select(_DEFINITION.c.id).where(*self._conditions(which))
        statement = ordered(wanted, sorts, _SORTED_BY, _DEFINITION.c.id, part)

        def work(connection: sa.Connection) -> Iterator[AlarmDefinition]:
            ids = connection.execute(statement).scalars().all()
            for start in range(0, len(ids), _DEFINITIONS_A_STEP):
                some = ids[start : start + _DEFINITIONS_A_STEP]
                with snapshot(connection):
                    rows = connection.execute(_SELECT.where(_DEFINITION.c.id.in_(some))).all()
                    found = _definitions(connection, sorted(rows, key=lambda row: some.index(row.id)))
                yield from found

        return self._database.stream(work)

    def get(self, tenant: str, definition_id: str) -> AlarmDefinition:
        """Raises `UnknownId`."""
        return self._database.read(lambda connection: _one(connection, tenant, definition_id))

    def create(self, tenant: str, definition: AlarmDefinition, now_ms: int) -> AlarmDefinition:
        """Raises `BrokenRules`, `NameTaken`."""
        parsed = checked(definition)
        created = replace(definition, id=new_id(), deterministic=_deterministic(parsed))

        def work(connection: sa.Connection) -> AlarmDefinition:
            next_version(connection)
            _check_actions(connection, tenant, created)
            row = {**_row(created), "id": created.id, "tenant": tenant, "match_by": list(created.match_by)}
            row |= {"created": now_ms, "updated": now_ms}
            connection.execute(_DEFINITION.insert().values(row))
            _insert_parts(connection, created, [StoredSubExpression(new_id(), 0, each) for each in parsed])
            return created

        return self._database.write(work, named=_WHAT)

    def change(
        self, tenant: str, definition_id: str, changed: Callable[[AlarmDefinition], AlarmDefinition], now_ms: int
    ) -> AlarmDefinition:
        """Change a definition with ``changed``, and return the new definition. Raises `UnknownId`, `BrokenRules`,
        `NameTaken`."""

        def work(connection: sa.Connection) -> AlarmDefinition:
            next_version(connection)
            before = _one(connection, tenant, definition_id)
            after = changed(before)
            parsed = checked(after)
            stored = _sub_expressions(connection, definition_id)
            refuse(refused_changes(before, after, [each.expression for each in stored], parsed))
            after = replace(after, id=definition_id, match_by=before.match_by, deterministic=_deterministic(parsed))
            _check_actions(connection, tenant, after)
            subs = paired(stored, parsed)
            compared = set(map(_comparison, stored))
            _lower_decided(connection, [each for each in subs if _comparison(each) not in compared], 0)
            if before.expression != after.expression:
                is_same_order = [each.id for each in stored] == [each.id for each in subs]
                if not is_same_order or parse(before.expression).structure != parse(after.expression).structure:
                    _lower_decided(connection, subs, RESTRUCTURED)
                _evaluate_soon(connection, definition_id)
            statement = _DEFINITION.update().where(*of_tenant(_DEFINITION, tenant, definition_id))
            connection.execute(statement.values(_row(after) | {"updated": now_ms}))
            _delete_parts(connection, definition_id)
            _insert_parts(connection, after, subs)
            return after

        return self._database.write(work, named=_WHAT)

    def delete(self, tenant: str, definition_id: str) -> None:
        """Delete a definition and its alarms, but keep their history. Raises `UnknownId`."""

        def work(connection: sa.Connection) -> None:
            next_version(connection)
            delete_one(connection, _DEFINITION, tenant, definition_id, _WHAT)
            subs = sa.select(_SUB.c.id).where(_SUB.c.definition_id == definition_id)
            for table in _OF_SUB_EXPRESSIONS:
                connection.execute(table.delete().where(table.c.sub_expression_id.in_(subs)))
            _delete_parts(connection, definition_id)
            of_definition = _ALARM.c.tenant == tenant, _ALARM.c.definition_id == definition_id
            alarms = sa.select(_ALARM.c.id).where(*of_definition)
            for table in _OF_ALARMS:
                connection.execute(table.delete().where(table.c.alarm_id.in_(alarms)))
            connection.execute(_ALARM.delete().where(*of_definition))

        self._database.write(work)

    def _conditions(self, which: DefinitionFilter) -> list[Condition]:
        conditions: list[Condition] = [_DEFINITION.c.tenant == which.tenant]
        if which.name is not None:
            conditions.append(_DEFINITION.c.name == which.name)
        if which.severities:
            conditions.append(_DEFINITION.c.severity.in_(which.severities))
        if which.dimensions:
            # The query is limited to the tenant's definitions, because dimensions have no index and other tenants may
            # have many.
            matching = self._queries.match(_SUB.c.dimensions, which.dimensions)
            own: Select = sa.select(_SUB.c.id).where(_SUB.c.definition_id == _DEFINITION.c.id, *matching)
            conditions.append(own.exists())
        return conditions


def _one(connection: sa.Connection, tenant: str, definition_id: str) -> AlarmDefinition:
    rows = connection.execute(_SELECT.where(*of_tenant(_DEFINITION, tenant, definition_id)))
    return _definitions(connection, [only_row(rows, _WHAT, definition_id)])[0]


def _definitions(connection: sa.Connection, rows: Sequence[Row]) -> list[AlarmDefinition]:
    """Return the definitions of these rows, with their actions."""
    actions: dict[tuple[str, str], list[str]] = defaultdict(list)
    statement = sa.select(_ACTION).where(_ACTION.c.definition_id.in_([row.id for row in rows]))
    for each in connection.execute(statement.order_by(_ACTION.c.position)):
        actions[each.definition_id, each.state].append(each.method_id)
    return [
        AlarmDefinition(
            **{name: getattr(row, name) for name in ("id", *_OWN)},
            match_by=tuple(row.match_by),
            alarm_actions=tuple(actions[row.id, "ALARM"]),
            ok_actions=tuple(actions[row.id, "OK"]),
            undetermined_actions=tuple(actions[row.id, "UNDETERMINED"]),
        )
        for row in rows
    ]


def _sub_expressions(connection: sa.Connection, definition_id: str) -> list[StoredSubExpression]:
    statement = sa.select(_SUB).where(_SUB.c.definition_id == definition_id).order_by(_SUB.c.position)
    return [sub_expression(row) for row in connection.execute(statement)]


def sub_expression(row: Row) -> StoredSubExpression:
    """Return the sub-expression of a row."""
    own = {name: getattr(row, name) for name in _OF_EXPRESSION}
    return StoredSubExpression(
        row.id, row.windows, SubExpression(**own, dimensions=tuple(sorted(row.dimensions.items())))
    )


def _comparison(sub: StoredSubExpression) -> tuple[str, str, float]:
    """Return the facts on which decisions about windows of the sub-expression are based."""
    return sub.id, sub.expression.operator, sub.expression.threshold


def _lower_decided(connection: sa.Connection, subs: Sequence[StoredSubExpression], decided_ms: int) -> None:
    """Lower `SubAlarm.decided_ms` in all alarms. So a new threshold does not replace `RESTRUCTURED`."""
    which = _SUB_ALARM.c.sub_expression_id.in_([each.id for each in subs]), _SUB_ALARM.c.decided > decided_ms
    connection.execute(_SUB_ALARM.update().where(*which).values(decided=decided_ms))


def _evaluate_soon(connection: sa.Connection, definition_id: str) -> None:
    """Request an evaluation in the next pass, because evaluations of ``last`` are never due."""
    of_definition: Select = sa.select(_ALARM.c.id).where(_ALARM.c.definition_id == definition_id)
    noting = schema.insert(connection, _CHANGED).from_select(["alarm_id"], of_definition)
    connection.execute(noting.on_conflict_do_nothing())


def _insert_parts(connection: sa.Connection, definition: AlarmDefinition, subs: Sequence[StoredSubExpression]) -> None:
    rows = [
        {
            "id": each.id,
            "windows": each.windows,
            "definition_id": definition.id,
            "position": position,
            "dimensions": dict(each.expression.dimensions),
            **{name: getattr(each.expression, name) for name in _OF_EXPRESSION},
        }
        for position, each in enumerate(subs)
    ]
    connection.execute(_SUB.insert(), rows)
    actions = [
        {"definition_id": definition.id, "state": state, "position": position, "method_id": method_id}
        for state, methods in definition.actions.items()
        for position, method_id in enumerate(methods)
    ]
    if actions:
        connection.execute(_ACTION.insert(), actions)


def _delete_parts(connection: sa.Connection, definition_id: str) -> None:
    for table in (_SUB, _ACTION):
        connection.execute(table.delete().where(table.c.definition_id == definition_id))


def _check_actions(connection: sa.Connection, tenant: str, definition: AlarmDefinition) -> None:
    """Check that the methods exist, and lock them until the commit, so that they cannot be deleted in the meantime.

    Raises `BrokenRules`.
    """
    wanted = set().union(*definition.actions.values())
    if not wanted:
        return
    statement = sa.select(_METHOD.c.id).where(_METHOD.c.tenant == tenant, _METHOD.c.id.in_(wanted))
    known = set(connection.execute(statement.with_for_update(read=True)).scalars())
    refuse(
        (f"{state.lower()}_actions[{index}]", "is not the id of a notification method")
        for state, methods in definition.actions.items()
        for index, method_id in enumerate(methods)
        if method_id not in known
    )


def _deterministic(parsed: Sequence[SubExpression]) -> bool:
    return all(each.deterministic for each in parsed)


def _row(definition: AlarmDefinition) -> dict[str, Any]:
    return {name: getattr(definition, name) for name in _OWN}
