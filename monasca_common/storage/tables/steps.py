# SPDX-License-Identifier: Apache-2.0
"""Compares tables with their definitions, and finds columns that can be added and differences that no statement can
repair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateColumn, CreateTable

from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.storage.sql.bounds import Bounds
from monasca_common.storage.tables.rows import StoredColumn, StoredTable

#: For each of `column_types.TYPES`: the type of a new column, and the types of existing ones that can store it.
SQL_TYPES: Mapping[str, tuple[Any, tuple[type[sa.types.TypeEngine[Any]], ...]]] = {
    "text": (sa.Text(), (sa.String,)),
    "integer": (sa.BigInteger(), (sa.Integer,)),
    "double": (sa.Double(), (sa.Float,)),
    "boolean": (sa.Boolean(), (sa.Boolean,)),
    # SQLite would round a number of this type
    "numeric": (sa.Numeric().with_variant(sa.Text(), "sqlite"), (sa.Numeric, sa.String)),
    "timestamp": (sa.DateTime(timezone=True), (sa.DateTime,)),
    "json": (sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), (sa.JSON, sa.String)),
    "bytes": (sa.LargeBinary(), (sa.LargeBinary,)),
}

_INDEXES_OF_POSTGRESQL = sa.text("""
    SELECT array_agg(a.attname::text), CASE
        WHEN x.indpred IS NOT NULL THEN 'is partial'
        WHEN NOT x.indimmediate THEN 'is deferrable'
        WHEN NOT x.indisvalid THEN 'is invalid'
        WHEN bool_or(NOT c.collisdeterministic) THEN 'has the collation ' || max(c.collname)
        ELSE '' END
    FROM pg_index x CROSS JOIN LATERAL
        unnest(x.indkey, x.indcollation) WITH ORDINALITY AS k (column_number, collation_id, n)
    LEFT JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.column_number
    LEFT JOIN pg_collation c ON c.oid = k.collation_id
    WHERE x.indrelid = CAST(quote_ident(:name) AS regclass) AND x.indisunique AND k.n <= x.indnkeyatts
    GROUP BY x.indexrelid, x.indpred, x.indimmediate, x.indisvalid
""")
_INDEXES_OF_SQLITE = sa.text("""
    SELECT i.name, i.partial, k.name AS "column", k.coll, i.origin
    FROM pragma_index_list(:name) i CROSS JOIN pragma_index_xinfo(i.name) k WHERE i."unique" AND k.key
""")


@dataclass(frozen=True, slots=True)
class TableStep:
    """A difference between a table and its mapping. ``statement``: repairs it; empty if no statement can."""

    table: str
    finding: str
    statement: str = ""


def table_steps(settings: StorageSettings, tables: Sequence[StoredTable], *, execute: bool = False) -> list[TableStep]:
    """Return the differences between tables and mappings. ``execute``: also run the statements, in one transaction.

    Raises `StorageUnavailable`.
    """
    seconds = settings.read_timeout_seconds
    bounds = None if execute else Bounds(seconds, seconds, seconds)
    try:
        with schema.engine(settings.connection, to_write=execute, bounds=bounds).begin() as connection:
            steps = [step for table in tables for step in _steps(connection, table)]
            if execute and all(step.statement for step in steps):
                for step in steps:
                    connection.exec_driver_sql(step.statement)
            return steps
    except SQLAlchemyError as error:
        raise StorageUnavailable(f"the tables cannot be read or changed: {schema.reason(error)}") from error


def misfit(settings: StorageSettings, tables: Sequence[StoredTable]) -> str:
    """Return the first difference, or an empty string if there is none."""
    steps = table_steps(settings, tables)
    return f"table {steps[0].table!r} {steps[0].finding}" if steps else ""


def _steps(connection: sa.Connection, mapping: StoredTable) -> Iterator[TableStep]:
    wanted, inspector = sql_table(mapping), sa.inspect(connection)
    if not inspector.has_table(mapping.name):
        yield TableStep(mapping.name, "does not exist", str(CreateTable(wanted).compile(connection)).strip())
        return
    if mapping.name not in inspector.get_table_names():
        yield TableStep(mapping.name, "is a view or a foreign table: name a table")
        return
    found = {str(column["name"]): column for column in inspector.get_columns(mapping.name)}
    for column in mapping.columns:
        existing = found.pop(column.name, None)
        if existing is None and column.name in mapping.key:
            yield TableStep(mapping.name, f"has no key column {column.name!r}: create another table with this key")
        elif existing is None:
            preparer = connection.dialect.identifier_preparer
            added = CreateColumn(wanted.c[column.name]).compile(dialect=connection.dialect)
            statement = f"ALTER TABLE {preparer.format_table(wanted)} ADD COLUMN {added}"
            yield TableStep(mapping.name, f"has no column {column.name!r}", statement)
        elif rule := _unusable(existing, column, is_key=column.name in mapping.key, dialect=connection.dialect.name):
            yield TableStep(mapping.name, f"has column {column.name!r} {rule}")
    for name, unmapped in found.items():
        is_filled = unmapped["nullable"] or unmapped.get("default") is not None or unmapped.get("computed") is not None
        if not is_filled and not unmapped.get("identity"):
            rule = f"has column {name!r}, which is NOT NULL without a default and not in the mapping: map it"
            yield TableStep(mapping.name, rule)
    faults = [fault for columns, fault in _unique_keys(connection, mapping.name) if columns == set(mapping.key)]
    if "" not in faults:
        key = ", ".join(mapping.key)
        rule = f"has no primary key or unique index of exactly the columns {key}"
        only = f" except one that {faults[0]}" if faults else ""
        yield TableStep(mapping.name, f"{rule}{only}: create one")


def _unique_keys(connection: sa.Connection, table: str) -> Iterator[tuple[set[str], str]]:
    """Yield the columns of each unique index, and the reason why ON CONFLICT cannot use it (empty if it can)."""
    if connection.dialect.name == "postgresql":
        for columns, fault in connection.execute(_INDEXES_OF_POSTGRESQL, {"name": table}):
            yield set(columns), fault
        return
    rows = connection.execute(_INDEXES_OF_SQLITE, {"name": table}).all()
    for index in {row.name for row in rows}:
        parts = [row for row in rows if row.name == index]
        collations = {row.coll for row in parts} - {"BINARY"}
        fault = "is partial" if parts[0].partial else f"has the collation {min(collations)}" if collations else ""
        yield {row.column for row in parts}, fault
    primary = sa.inspect(connection).get_pk_constraint(table)["constrained_columns"]
    if len(primary) == 1 and not any(row.origin == "pk" for row in rows):
        yield set(primary), ""  # the row id, which needs no index


def _unusable(existing: Any, column: StoredColumn, *, is_key: bool, dialect: str) -> str:
    """Return the reason why a column cannot store a column of the mapping, with the remedy; empty if it can."""
    kind = existing["type"]
    inexact = sa.Numeric if dialect == "sqlite" else sa.Float
    rounds = column.type.name == "numeric" and isinstance(kind, inexact)
    if rounds or not isinstance(kind, SQL_TYPES[column.type.name][1]):
        return f"of type {kind}, which does not store {column.type.name}: change the type in the mapping"
    if existing.get("computed") is not None or (existing.get("identity") or {}).get("always"):
        return "that the database generates: remove it from the mapping"
    merges = isinstance(kind, sa.CHAR | postgresql.CITEXT) or getattr(kind, "precision", None) in range(6)
    if is_key and dialect == "postgresql" and merges:
        return f"of type {kind}, which makes different keys equal: use TEXT, VARCHAR or TIMESTAMP"
    return ""


def sql_table(table: StoredTable) -> sa.Table:
    """Return the SQLAlchemy table of a mapped table. Its names are quoted, so that a table file cannot inject
    statements."""
    columns = [
        sa.Column(_always_quoted(each.name), SQL_TYPES[each.type.name][0], nullable=each.name not in table.key)
        for each in table.columns
    ]
    key = sa.PrimaryKeyConstraint(*map(_always_quoted, table.key))
    return sa.Table(_always_quoted(table.name), sa.MetaData(), *columns, key, sqlite_with_rowid=False)


def _always_quoted(name: str) -> sa.sql.quoted_name:
    return sa.sql.quoted_name(name, quote=True)
