# SPDX-License-Identifier: Apache-2.0
"""Compares tables and a sample of a topic with the mapping: what can be added, and what no statement can repair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateColumn, CreateTable

from monasca_common.kafka.message import LazyColumns, Message, PartitionBatch, TopicPartition
from monasca_common.sink.decoder import Faults, FieldReader, TopicDecoder
from monasca_common.sink.mapping import MessagePart, TableMapping
from monasca_common.sink.table_writer import SQL_TYPES, sql_table
from monasca_common.sink.values import kind_of
from monasca_common.storage.errors import StorageUnavailable
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema


@dataclass(frozen=True, slots=True)
class TableStep:
    """A difference of a table from its mapping. ``statement``: what repairs it; empty if it is refused."""

    table: str
    finding: str
    statement: str = ""


def table_steps(settings: StorageSettings, tables: Sequence[TableMapping], *, execute: bool = False) -> list[TableStep]:
    """Return the differences of all tables; ``execute``: run their statements, all in one transaction.

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


def misfit(settings: StorageSettings, tables: Sequence[TableMapping]) -> str:
    """Return the first difference; empty if there is none."""
    steps = table_steps(settings, tables)
    return f"table {steps[0].table!r} {steps[0].finding}" if steps else ""


def _steps(connection: sa.Connection, mapping: TableMapping) -> Iterator[TableStep]:
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
        elif not isinstance(existing["type"], SQL_TYPES[column.type.name][1]):
            kind = existing["type"]
            rule = f"has column {column.name!r} of type {kind}, which does not store {column.type.name}"
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


def sample_findings(decoder: TopicDecoder, messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return what a sample of a topic shows, as (place, finding): messages that would become dead letters, and fields
    that no column reads. Raises `RetryLater`."""
    findings: dict[tuple[str, str], None] = {}
    for partition, chosen in groupby(sorted(messages, key=_partition), key=_partition):
        part, faults = _batch(list(chosen)), Faults()
        decoder.decode(part, faults)
        place = "{}/{}".format(*partition)
        findings |= {(f"{place}/{offset}", "; ".join(reasons)): None for offset, reasons in faults.reasons.items()}
        for table in decoder.tables:
            path = table.each or ()
            values = FieldReader(decoder.load(table, "value"), "value", [path]).read(part, Faults())[path]
            findings |= {(table.name, finding): None for finding in _unmapped(table, values)}
    return sorted(findings)


def _unmapped(table: TableMapping, values: Sequence[Any]) -> Iterator[str]:
    part = MessagePart.VALUE if table.each is None else MessagePart.ELEMENT
    read = {column.source.steps[:1] for column in table.columns if column.source.part is part}
    if table.each is not None:
        values = [element for array in values if isinstance(array, list) for element in array]
    kinds: dict[str, str] = {}
    for value in values if () not in read else ():  # () reads the whole value
        kinds |= {name: kind_of(each) for name, each in value.items()} if isinstance(value, Mapping) else {}
    for name, kind in kinds.items():
        if (name,) not in read:
            yield f"no column reads {part}.{name}, which is {kind}"


def _partition(message: Message) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


def _batch(messages: Sequence[Message]) -> PartitionBatch:
    fields = {"offsets": "offset", "keys": "key", "values": "value", "timestamps": "timestamp_ms", "headers": "headers"}
    columns = LazyColumns(len(messages), lambda name: [getattr(message, fields[name]) for message in messages])
    return PartitionBatch(_partition(messages[0]), 0, columns)
