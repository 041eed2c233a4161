# SPDX-License-Identifier: Apache-2.0
"""The sub-expressions of all definitions, read from the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms.definition_tables import sub_expression
from monasca_common.pipeline.evaluate.matching import ActiveSubExpression
from monasca_common.storage.sql.tables import alarm_definition, alarm_definitions_version, alarm_sub_expression

_IDS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class ActiveDefinitions:
    """``version``: of all definitions. ``versions``: of each sub-expression's definition."""

    version: int
    sub_expressions: tuple[ActiveSubExpression, ...]
    versions: Mapping[str, int]


def current(connection: sa.Connection, known: ActiveDefinitions | None = None) -> ActiveDefinitions:
    """``known``, if nothing has changed since it was read. Within a transaction that reads a snapshot."""
    found = version(connection)
    if known is not None and known.version == found:
        return known
    definition, sub = alarm_definition.c, alarm_sub_expression.c
    columns = (definition.tenant, definition.match_by, definition.created, definition.version)
    joined = alarm_sub_expression.join(alarm_definition, definition.id == sub.definition_id)
    rows = connection.execute(sa.select(*alarm_sub_expression.c, *columns).select_from(joined).order_by(sub.id)).all()
    active = []
    for row in rows:
        stored = sub_expression(row)
        active.append(
            ActiveSubExpression(
                stored.id, stored.windows, row.tenant, tuple(row.match_by), row.created, stored.expression
            )
        )
    return ActiveDefinitions(found, tuple(active), {row.id: row.version for row in rows})


def versions(connection: sa.Connection, sub_expression_ids: Sequence[str]) -> dict[str, int]:
    """Of the definitions of these, as far as there are. Another one: the definition changed, or lost an alarm."""
    sub, definition = alarm_sub_expression.c, alarm_definition.c
    joined = alarm_sub_expression.join(alarm_definition, definition.id == sub.definition_id)
    query = sa.select(sub.id, definition.version).select_from(joined)
    now: dict[str, int] = {}
    for start in range(0, len(sub_expression_ids), _IDS_AT_ONCE):
        some = sub_expression_ids[start : start + _IDS_AT_ONCE]
        now |= {row.id: row.version for row in connection.execute(query.where(sub.id.in_(some))).all()}
    return now


def version(connection: sa.Connection) -> int:
    """Of all definitions."""
    return int(connection.execute(sa.select(alarm_definitions_version.c.version)).scalar_one())


def hold_version(connection: sa.Connection) -> int:
    """From here to the end of the transaction nobody changes a definition, or deletes one or an alarm."""
    held = sa.select(alarm_definitions_version.c.version).with_for_update(read=True)
    return int(connection.execute(held).scalar_one())
