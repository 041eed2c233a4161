# SPDX-License-Identifier: Apache-2.0
"""The sub-expressions of all definitions, read from the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from monasca_common.alarms.definition_tables import sub_expression
from monasca_common.pipeline.evaluate.matching import ActiveSubExpression
from monasca_common.storage.sql.tables import alarm_definition, alarm_definitions_version, alarm_sub_expression


@dataclass(frozen=True, slots=True)
class ActiveDefinitions:
    """``version``: of all definitions. ``versions``: of each sub-expression's definition."""

    version: int
    sub_expressions: tuple[ActiveSubExpression, ...]
    versions: Mapping[str, int]


def current(connection: sa.Connection, known: ActiveDefinitions | None = None) -> ActiveDefinitions:
    """``known``, if nothing has changed since it was read. Within a transaction that reads a snapshot."""
    version = connection.execute(sa.select(alarm_definitions_version.c.version)).scalar_one()
    if known is not None and known.version == version:
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
    return ActiveDefinitions(int(version), tuple(active), {row.id: row.version for row in rows})


def hold_version(connection: sa.Connection) -> int:
    """From here to the end of the transaction nobody changes a definition, or deletes one or an alarm."""
    return int(connection.execute(sa.select(alarm_definitions_version.c.version).with_for_update()).scalar_one())
