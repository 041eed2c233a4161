# SPDX-License-Identifier: Apache-2.0
"""Compares tables with their definitions: what can be added, and what no statement can repair."""

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
from monasca_common.storage.tables.rows import StoredTable

#: The type of a new column, and the types of existing ones that can store it.
SQL_TYPES: Mapping[str, tuple[Any, tuple[type[sa.types.TypeEngine[Any]], ...]]] = {
    "text": (sa.Text(), (sa.String,)),
    "integer": (sa.BigInteger(), (sa.Integer,)),
    "double": (sa.Double(), (sa.Float,)),
    "boolean": (sa.Boolean(), (sa.Boolean,)),
    "numeric": (sa.Numeric().with_variant(sa.Text(), "sqlite"), (sa.Numeric, sa.String)),  # SQLite would round it
    "timestamp": (sa.DateTime(timezone=True), (sa.DateTime,)),
    "json": (sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), (sa.JSON, sa.String)),
    "bytes": (sa.LargeBinary(), (sa.LargeBinary,)),
}


@dataclass(frozen=True, slots=True)
class TableStep:
    """A difference of a table from its mapping. ``statement``: what repairs it; empty if it is refused."""

    table: str
    finding: str
    statement: str = ""


def table_steps(settings: StorageSettings, tables: Sequence[StoredTable], *, execute: bool = False) -> list[TableStep]:
    """Return the differences of all tables. ``execute``: also run their statements, in one transaction.

    Raises `StorageUnavailable`.
    """
    try:
        with schema.engine(settings.connection, to_write=execute).begin() as connection:
            steps = [step for table in tables for step in _steps(connection, table)]
            if execute and all(step.statement for step in steps):
                for step in steps:
                    connection.exec_driver_sql(step.statement)
            return steps
    except SQLAlchemyError as error:
        raise StorageUnavailable(f"the tables cannot be read or changed: {schema.reason(error)}") from error


def misfit(settings: StorageSettings, tables: Sequence[StoredTable]) -> str:
    """Return the first difference; empty if there is none."""
    steps = table_steps(settings, tables)
    return f"table {steps[0].table!r} {steps[0].finding}" if steps else ""


def _steps(connection: sa.Connection, mapping: StoredTable) -> Iterator[TableStep]:
    wanted, inspector = sql_table(mapping), sa.inspect(connection)
    if not inspector.has_table(mapping.name):
        yield TableStep(mapping.name, "does not exist", str(CreateTable(wanted).compile(connection)).strip())
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
        elif not _stores(existing["type"], column.kind, connection.dialect.name):
            kind = existing["type"]
            rule = f"has column {column.name!r} of type {kind}, which does not store {column.kind}"
            yield TableStep(mapping.name, f"{rule}: change the type in the mapping")
    for name, column_of_table in found.items():
        if not column_of_table["nullable"] and column_of_table.get("default") is None:
            rule = f"has column {name!r}, which is NOT NULL without a default and not in the mapping: map it"
            yield TableStep(mapping.name, rule)
    keys: list[Sequence[str | None]] = [inspector.get_pk_constraint(mapping.name)["constrained_columns"]]
    keys += [each["column_names"] for each in inspector.get_unique_constraints(mapping.name)]
    keys += [each["column_names"] for each in inspector.get_indexes(mapping.name) if each["unique"]]
    if set(mapping.key) not in [set(each) for each in keys]:
        key = ", ".join(mapping.key)
        yield TableStep(mapping.name, f"has no primary key or unique index of exactly the columns {key}: create one")


def _stores(found: sa.types.TypeEngine[Any], kind: str, dialect: str) -> bool:
    rounds = dialect == "sqlite" and isinstance(found, sa.Numeric)
    return isinstance(found, SQL_TYPES[kind][1]) and not (kind == "numeric" and rounds)


def sql_table(table: StoredTable) -> sa.Table:
    """Return the table of a table. Quoting its names prevents that a table file injects statements."""
    columns = [
        sa.Column(_always_quoted(each.name), SQL_TYPES[each.kind][0], nullable=each.name not in table.key)
        for each in table.columns
    ]
    key = sa.PrimaryKeyConstraint(*map(_always_quoted, table.key))
    return sa.Table(_always_quoted(table.name), sa.MetaData(), *columns, key, sqlite_with_rowid=False)


def _always_quoted(name: str) -> sa.sql.quoted_name:
    return sa.sql.quoted_name(name, quote=True)
