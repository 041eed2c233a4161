# SPDX-License-Identifier: Apache-2.0
"""The SQLAlchemy statements of `SqlReader`, for SQLite and PostgreSQL. No I/O.

Four rules make them fast, and a test with EXPLAIN checks them. A page of series is read from an index whose last column
is its sort key. A check for a measurement in a time range runs for each series, and is never a join. Dimensions are
looked up in the GIN index. One statement over the key (series, time) reads the rows of many series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from monasca_common.models.numbers import GREATEST
from monasca_common.storage.reader import AlarmFilter, PageOf, Position, SeriesFilter, Span
from monasca_common.storage.sql import tables

# a function that our SQLite connections define, because SQLite itself has one only since version 3.41
UNHEX = "monasca_unhex"
_SERIES, _ROWS, _ALARMS = tables.series, tables.measurements, tables.alarm_history

_FEW_VALUES = 16  # maximum number of a dimension's values to look up in the index

Select: TypeAlias = sa.Select[*tuple[Any, ...]]
Condition: TypeAlias = sa.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Queries:
    """Statements for one dialect: ``sqlite`` or ``postgresql``. ``only_finite``: omit measurements of NaN and the
    infinities."""

    dialect: str
    only_finite: bool = True

    def series(self, which: SeriesFilter, page: PageOf) -> Select:
        columns = (_SERIES.c.id, _SERIES.c.tenant, _SERIES.c.region, _SERIES.c.name)
        statement = sa.select(*columns, self._text(_SERIES.c.dimensions)).where(*self._series_conditions(which))
        if page.after is not None:
            statement = statement.where(_SERIES.c.id > bytes.fromhex(page.after))
        return statement.order_by(_SERIES.c.id).limit(page.limit)

    def names(self, which: SeriesFilter, page: PageOf) -> Select:
        return self._distinct(sa.select(_SERIES.c.name), _SERIES.c.name, which, page)

    def dimension_names(self, which: SeriesFilter, page: PageOf) -> Select:
        if self._on_postgresql:
            keys = sa.func.jsonb_object_keys(_SERIES.c.dimensions).table_valued("key").render_derived()
        else:
            keys = sa.func.json_each(_SERIES.c.dimensions).table_valued("key", "value")
        key = self._by_bytes(keys.c.key)
        return self._distinct(sa.select(key).select_from(_SERIES.join(keys, sa.true())), key, which, page)

    def dimension_values(self, which: SeriesFilter, key: str, page: PageOf) -> Select:
        if self._on_postgresql:
            value = self._by_bytes(_jsonb(_SERIES.c.dimensions)[key].astext)
            statement = sa.select(value).where(_jsonb(_SERIES.c.dimensions).has_key(key))
        else:
            pairs = sa.func.json_each(_SERIES.c.dimensions).table_valued("key", "value")
            value = pairs.c.value
            statement = sa.select(value).select_from(_SERIES.join(pairs, sa.true())).where(pairs.c.key == key)
        return self._distinct(statement, value, which, page)

    def measurements_merged(
        self, series_ids: Sequence[bytes], span: Span, *, limit: int, after: Position | None
    ) -> Select:
        """Return measurements ordered by time, then series."""
        statement = self._points(series_ids, span)
        if after is not None and after.series_id is None:
            statement = statement.where(_ROWS.c.time > after.time_ms)
        elif after is not None:
            # The pair implies this bound on the time; the bound is repeated for the index and the partitions.
            statement = statement.where(
                _ROWS.c.time >= after.time_ms,
                sa.tuple_(_ROWS.c.time, _ROWS.c.series_id) > _place(after.time_ms, after.series_id),
            )
        return statement.order_by(_ROWS.c.time, _ROWS.c.series_id).limit(limit)

    def measurements_apart(
        self, series_ids: Sequence[bytes], span: Span, *, limit: int, after_ms: int | None
    ) -> Select:
        """Return measurements ordered by series, then time, like the key. ``after_ms``: bounds the first series."""
        statement = self._points(series_ids, span)
        if after_ms is not None:
            statement = statement.where(sa.or_(_ROWS.c.series_id != series_ids[0], _ROWS.c.time > after_ms))
        return statement.order_by(_ROWS.c.series_id, _ROWS.c.time).limit(limit)

    def statistics(
        self,
        groups: Sequence[Sequence[bytes]],
        functions: Sequence[str],
        span: Span,
        *,
        period_ms: int,
        limit: int,
        resume_ms: int | None,
    ) -> Select:
        """Return the group, the number of the window, and the value of each function. ``resume_ms``: the time at which
        the first group starts."""
        members = self._members(groups)
        rows = (
            sa.select(
                members.c.grp,
                ((_ROWS.c.time - span.start_ms) // period_ms).label("number"),
                _ROWS.c.value,
            )
            .select_from(members.join(_ROWS, _ROWS.c.series_id == members.c.id))
            .where(*_between(_ROWS.c.time, span), _is_finite())
        )
        if resume_ms is not None:
            rows = rows.where(sa.or_(members.c.grp > 0, _ROWS.c.time >= resume_ms))
        each = rows.subquery("each_row")
        columns = [getattr(sa.func, name)(each.c.value).label(name) for name in functions]
        return (
            sa.select(each.c.grp, each.c.number, *columns)
            .group_by(each.c.grp, each.c.number)
            .order_by(each.c.grp, each.c.number)
            .limit(limit)
        )

    def alarm_history(self, which: AlarmFilter, limit: int, after: tuple[int, bytes] | None) -> Select:
        conditions = [
            _ALARMS.c.tenant == which.tenant,
            *_between(_ALARMS.c.time, Span(which.start_ms or 0, which.end_ms)),
        ]
        if which.alarm_id is not None:
            conditions.append(_ALARMS.c.alarm_id == which.alarm_id)
        if which.dimensions:
            conditions.append(self._some_metric_has(which.dimensions))
        if after is not None:
            conditions.append(_ALARMS.c.time >= after[0])
            conditions.append(sa.tuple_(_ALARMS.c.time, _ALARMS.c.message_id) > _place(*after))
        columns = ("time", "message_id", "alarm_id", "old_state", "new_state", "reason")
        documents = (self._text(_ALARMS.c.metrics), self._text(_ALARMS.c.sub_alarms))
        statement = sa.select(*(_ALARMS.c[name] for name in columns), *documents)
        return statement.where(*conditions).order_by(_ALARMS.c.time, _ALARMS.c.message_id).limit(limit)

    @property
    def _on_postgresql(self) -> bool:
        return self.dialect == "postgresql"

    def _text(self, document: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        """Return a JSON column as text, so that a caller parses one row at a time."""
        name = cast(sa.Column[Any], document).name
        return (sa.cast if self._on_postgresql else sa.type_coerce)(document, sa.Text).label(name)

    def _by_bytes(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        return sa.collate(column, "C") if self._on_postgresql else column

    def _distinct(self, statement: Select, column: sa.ColumnElement[str], which: SeriesFilter, page: PageOf) -> Select:
        statement = statement.where(*self._series_conditions(which))
        if page.after is not None:
            statement = statement.where(column > page.after)
        return statement.distinct().order_by(column).limit(page.limit)

    def _series_conditions(self, which: SeriesFilter) -> list[Condition]:
        conditions: list[Condition] = [_SERIES.c.tenant == which.tenant]
        if which.region is not None:
            conditions.append(_SERIES.c.region == which.region)
        if which.name is not None:
            conditions.append(_SERIES.c.name == which.name)
        conditions += self.match(_SERIES.c.dimensions, which.dimensions)
        if which.start_ms is not None or which.end_ms is not None:
            rows: Select = sa.select(sa.literal_column("1")).where(
                _ROWS.c.series_id == _SERIES.c.id, *_between(_ROWS.c.time, Span(which.start_ms or 0, which.end_ms))
            )
            # OFFSET prevents PostgreSQL from using a join, which would read every measurement of the requested time.
            conditions.append(rows.limit(1).offset(0).exists())
        return conditions

    def match(self, document: sa.ColumnElement[Any], dimensions: Mapping[str, Sequence[str]]) -> list[Condition]:
        """Return the conditions under which a JSON object has each key and, if values are given for the key, one of
        these values."""
        if not self._on_postgresql:
            return [_pair_of(document, key, values) for key, values in dimensions.items()]
        # Use as few conditions as possible, because PostgreSQL takes milliseconds to plan each of them.
        bare = [key for key, values in dimensions.items() if not values]
        single = {key: values[0] for key, values in dimensions.items() if len(values) == 1}
        many = {key: values for key, values in dimensions.items() if len(values) > _FEW_VALUES}
        few = {key: values for key, values in dimensions.items() if 1 < len(values) <= _FEW_VALUES}
        conditions: list[Condition] = []
        if bare or many:
            conditions.append(_jsonb(document).has_all(_array([*bare, *many], sa.Text())))
        if single:
            conditions.append(_jsonb(document).contains(single))
        for key, values in few.items():
            pairs = _array([{key: value} for value in values], postgresql.JSONB())
            conditions.append(_jsonb(document).contains(sa.any_(pairs)))
        # No index contains these values, but each row is checked once instead of once per value.
        conditions += [
            sa.func.jsonb_extract_path(document, key) == sa.any_(_array(values, postgresql.JSONB()))
            for key, values in many.items()
        ]
        return conditions

    def _some_metric_has(self, dimensions: Mapping[str, Sequence[str]]) -> Condition:
        """Check types first, because messages may contain any JSON, on which object and list functions can fail."""
        stored = _ALARMS.c.metrics
        if self._on_postgresql:
            metrics = _jsonb(_if_of_type("array", sa.func.jsonb_typeof(stored), stored))
            metric = sa.func.jsonb_array_elements(metrics).table_valued("value", joins_implicitly=True)
            found = _jsonb(metric.c.value)["dimensions"]
            document = _if_of_type("object", sa.func.jsonb_typeof(found), found)
        else:
            metrics = _if_of_type("array", sa.func.json_type(stored), sa.type_coerce(stored, sa.Text))
            metric = sa.func.json_each(metrics).table_valued("value", "type", joins_implicitly=True)
            found = sa.func.json_extract(metric.c.value, "$.dimensions")
            found = _if_of_type("object", sa.func.json_type(metric.c.value, "$.dimensions"), found)
            document = _if_of_type("object", metric.c.type, found)
        conditions = self.match(document, dimensions)
        return sa.select(sa.literal_column("1")).select_from(metric).where(*conditions).exists()

    def _points(self, series_ids: Sequence[bytes], span: Span) -> Select:
        columns = (_ROWS.c.time, _ROWS.c.value, self._text(_ROWS.c.value_meta), _ROWS.c.series_id)
        statement = sa.select(*columns).where(self._one_of(series_ids), *_between(_ROWS.c.time, span))
        return statement.where(_is_finite()) if self.only_finite else statement

    def _one_of(self, series_ids: Sequence[bytes]) -> Condition:
        if len(series_ids) == 1:
            return _ROWS.c.series_id == series_ids[0]
        if self._on_postgresql:
            return _ROWS.c.series_id == sa.any_(sa.literal(list(series_ids), postgresql.ARRAY(sa.LargeBinary)))
        return _ROWS.c.series_id.in_(sa.select(self._members([series_ids]).c.id))

    def _members(self, groups: Sequence[Sequence[bytes]]) -> sa.FromClause:
        """Return a table with the columns ``id`` and ``grp``. It takes only one or two parameters, because the number
        of parameters is limited."""
        pairs = [(series_id, number) for number, group in enumerate(groups) for series_id in group]
        if self._on_postgresql:
            ids = sa.literal([pair[0] for pair in pairs], postgresql.ARRAY(sa.LargeBinary))
            numbers = sa.literal([pair[1] for pair in pairs], postgresql.ARRAY(sa.Integer))
            return (
                sa.func.unnest(ids, numbers)
                .table_valued(sa.column("id", sa.LargeBinary), sa.column("grp", sa.Integer))
                .render_derived()
            )
        document = msgspec.json.encode([(series_id.hex(), number) for series_id, number in pairs]).decode()
        item = sa.func.json_each(document).table_valued("value")
        return sa.select(
            getattr(sa.func, UNHEX)(sa.func.json_extract(item.c.value, "$[0]"), type_=sa.LargeBinary).label("id"),
            sa.func.json_extract(item.c.value, "$[1]", type_=sa.Integer).label("grp"),
        ).subquery("members")


def _between(column: sa.ColumnElement[int], span: Span) -> list[Condition]:
    return [column >= span.start_ms, *([column <= span.end_ms] if span.end_ms is not None else [])]


def _is_finite() -> Condition:
    """Exclude NaN and the infinities. In both databases, NaN is greater than all numbers."""
    return _ROWS.c.value.between(-GREATEST, GREATEST)


def _if_of_type(kind: str, found: sa.ColumnElement[str], document: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return ``document`` if its type is ``kind`` (the database's name for it), otherwise NULL."""
    return sa.case((found == kind, document))


def _array(items: Sequence[Any], of: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
    return sa.literal(list(items), postgresql.ARRAY(of))


def _pair_of(document: sa.ColumnElement[Any], key: str, values: Sequence[str]) -> Condition:
    pair = sa.func.json_each(document).table_valued("key", "value", joins_implicitly=True)
    conditions = [pair.c.key == key, *([pair.c.value.in_(values)] if values else [])]
    return sa.select(sa.literal_column("1")).select_from(pair).where(*conditions).exists()


def _place(time_ms: int, key: bytes | None) -> Any:
    return sa.tuple_(sa.literal(time_ms, sa.BigInteger), sa.literal(key, sa.LargeBinary))


def _jsonb(document: sa.ColumnElement[Any]) -> Any:
    return sa.type_coerce(document, postgresql.JSONB())
