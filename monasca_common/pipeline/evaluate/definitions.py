# SPDX-License-Identifier: Apache-2.0
"""Loads alarm definitions, and finds the sub-expressions to which a series belongs."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.alarms.database import Condition, Row, Select
from monasca_common.alarms.definition_tables import sub_expression
from monasca_common.alarms.definitions import StoredSubExpression
from monasca_common.alarms.expression import Expression, SubExpression, parse
from monasca_common.models import json_text
from monasca_common.models.series import Series
from monasca_common.storage.sql.tables import alarm_definition, alarm_definitions_version, alarm_sub_expression

_KEY_BYTES = 16
_TEXTS = postgresql.ARRAY(sa.Text())
_parsed: Callable[[str], Expression] = lru_cache(maxsize=20_000)(parse)
_Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class IndexedSubExpression:
    """A sub-expression with the fields of its definition that matching requires. ``created_ms``: the creation time of
    the definition. ``windows``: the generation of its windows."""

    id: str
    windows: int
    tenant: str
    match_by: tuple[str, ...]
    created_ms: int
    expression: SubExpression


@dataclass(frozen=True, slots=True)
class MatchTarget:
    """The window that a measurement belongs to. ``values``: the values of the ``match_by`` dimensions, empty for
    dimensions that the series lacks."""

    sub_expression: IndexedSubExpression
    values: tuple[str, ...]
    key: bytes


def match_key(values: Sequence[str]) -> bytes:
    return hashlib.blake2b(json_text.write(list(values)), digest_size=_KEY_BYTES).digest()


class SubExpressionIndex:
    """Finds the sub-expressions that a series belongs to. Each sub-expression is indexed by its tenant, metric name and
    rarest dimension (``None`` without dimensions), so a series is compared with few sub-expressions even if thousands
    of definitions use its name."""

    def __init__(self, sub_expressions: Iterable[IndexedSubExpression]) -> None:
        named: dict[tuple[str, str], list[IndexedSubExpression]] = defaultdict(list)
        for each in sub_expressions:
            named[each.tenant, each.expression.metric_name].append(each)
        self._by_pair: dict[tuple[str, str], dict[_Pair | None, list[IndexedSubExpression]]] = {}
        for name, found in named.items():
            of_name = self._by_pair.setdefault(name, defaultdict(list))
            counts = Counter(pair for each in found for pair in each.expression.dimensions)
            for each in found:
                rarest = min(each.expression.dimensions, key=lambda pair: (counts[pair], pair), default=None)
                of_name[rarest].append(each)

    def targets(self, series: Series) -> Iterator[MatchTarget]:
        dimensions = series.dimensions
        by_pair = self._by_pair.get((series.tenant, series.name))
        if by_pair is None:
            return
        for pair in (None, *dimensions.items()):
            for each in by_pair.get(pair, ()):
                if all(dimensions.get(key) == value for key, value in each.expression.dimensions):
                    values = tuple(dimensions.get(key, "") for key in each.match_by)
                    if any(values) or not each.match_by:
                        yield MatchTarget(each, values, match_key(values))


@dataclass(frozen=True, slots=True)
class DefinitionsSnapshot:
    """The sub-expressions of all definitions. ``version``: the version of all definitions."""

    version: int
    sub_expressions: tuple[IndexedSubExpression, ...]


def load_snapshot(connection: sa.Connection, known: DefinitionsSnapshot | None = None) -> DefinitionsSnapshot:
    """Return all definitions; this is ``known`` if none has changed since it was read. Call it in a transaction that
    reads a snapshot or has locked the version."""
    found = version(connection)
    if known is not None and known.version == found:
        return known
    definition, sub = alarm_definition.c, alarm_sub_expression.c
    columns = (definition.tenant, definition.match_by, definition.created)
    joined = alarm_sub_expression.join(alarm_definition, definition.id == sub.definition_id)
    rows = connection.execute(sa.select(*alarm_sub_expression.c, *columns).select_from(joined).order_by(sub.id)).all()
    sub_expressions = []
    for row in rows:
        stored = sub_expression(row)
        sub_expressions.append(
            IndexedSubExpression(
                stored.id, stored.windows, row.tenant, tuple(row.match_by), row.created, stored.expression
            )
        )
    return DefinitionsSnapshot(found, tuple(sub_expressions))


def version(connection: sa.Connection) -> int:
    """Return the version of all definitions."""
    return int(connection.execute(sa.select(alarm_definitions_version.c.version)).scalar_one())


def lock_version(connection: sa.Connection) -> int:
    """Lock the version: until the transaction ends, no definition changes, and no definition or alarm is deleted."""
    held = sa.select(alarm_definitions_version.c.version).with_for_update(read=True)
    return int(connection.execute(held).scalar_one())


@dataclass(frozen=True, slots=True)
class LoadedDefinition:
    """``row``: the row of the table. ``sub_expressions``: its sub-expressions, in the order of the expression."""

    row: Row
    expression: Expression
    sub_expressions: tuple[StoredSubExpression, ...]


def among(connection: sa.Connection, column: sa.ColumnElement[str], ids: Sequence[str]) -> Condition:
    """Return the condition that the column's value is one of the sorted ``ids``. The condition includes the range of
    the ids, so that a database reads only a part of an index. On PostgreSQL the ids are one parameter, because sending
    thousands of parameters takes longer than the query."""
    if not ids:
        return sa.false()
    is_one: Condition = column.in_(ids)
    if connection.dialect.name == "postgresql":
        is_one = column == sa.any_(sa.cast(sa.literal(list(ids), _TEXTS), _TEXTS))
    return sa.and_(column >= ids[0], column <= ids[-1], is_one)


def load_definitions(connection: sa.Connection, ids: Sequence[str]) -> dict[str, LoadedDefinition]:
    """Return the definitions that exist among ``ids``, which must be sorted."""
    sub = alarm_sub_expression.c
    subs: dict[str, list[StoredSubExpression]] = defaultdict(list)
    stored: Select = sa.select(alarm_sub_expression).where(among(connection, sub.definition_id, ids))
    for row in connection.execute(stored.order_by(sub.position)).all():
        subs[row.definition_id].append(sub_expression(row))
    found: Select = sa.select(alarm_definition).where(among(connection, alarm_definition.c.id, ids))
    rows = connection.execute(found).all()
    return {row.id: LoadedDefinition(row, _parsed(row.expression), tuple(subs[row.id])) for row in rows}
