# SPDX-License-Identifier: Apache-2.0
"""The statements that a batch of rows is stored with, and the tuples that they take."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import orjson

from monasca_common.models.rows import AlarmTransition, Event, LogEntry, Measurement
from monasca_common.models.series import Series
from monasca_common.storage.base import Kind

# ON CONFLICT DO NOTHING, and not INSERT OR IGNORE, which would also drop rows that violate something else.
INSERT_SERIES = (
    "INSERT INTO series (id, tenant, region, name, dimensions) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_COLUMNS = "series_id, time, value, value_meta, version"
_PLACES = "(?, ?, ?, ?, ?)"
INSERT_MEASUREMENT = f"INSERT INTO measurements ({_COLUMNS}) VALUES {_PLACES}"  # nosec B608
# Of one statement: a quarter less time than with one each, and Python's other threads run while it is at work.
_MEASUREMENTS_AT_ONCE = 100

# Rows with keys that exist already: the batch is staged, compared with what is there, and merged.
CREATE_STAGED = f"CREATE TEMPORARY TABLE IF NOT EXISTS staged ({_COLUMNS})"
EMPTY_STAGED = "DELETE FROM staged"
INSERT_STAGED = f"INSERT INTO staged VALUES {_PLACES}"  # nosec B608
COUNT_STAGED = """
    SELECT count(*), coalesce(sum(new.value IS NOT old.value OR new.value_meta IS NOT old.value_meta), 0)
    FROM staged AS new CROSS JOIN measurements AS old ON old.series_id = new.series_id AND old.time = new.time
"""
MERGE_STAGED = f"""
    INSERT INTO measurements ({_COLUMNS}) SELECT * FROM staged WHERE true
    ON CONFLICT (series_id, time) DO UPDATE
    SET value = excluded.value, value_meta = excluded.value_meta, version = excluded.version
    WHERE (excluded.version, excluded.value, excluded.value_meta IS NOT NULL, ifnull(excluded.value_meta, ''))
        > (version, value, value_meta IS NOT NULL, ifnull(value_meta, ''))
"""  # nosec B608

# How often series were removed: what a writer remembers of them is worth nothing then.
SELECT_PRUNINGS = "PRAGMA user_version"

SELECT_NEXT = "SELECT next, topic_id FROM kafka_offset WHERE consumer_group = ? AND topic = ? AND partition = ?"
INSERT_NEXT = (
    "INSERT INTO kafka_offset (consumer_group, topic, partition, topic_id, next) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
PUT_NEXT = (
    "INSERT INTO kafka_offset (consumer_group, topic, partition, topic_id, next) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (consumer_group, topic, partition) DO UPDATE SET topic_id = excluded.topic_id, next = excluded.next"
)
DELETE_NEXT = "DELETE FROM kafka_offset WHERE consumer_group = ? AND topic = ? AND partition = ?"
UPDATE_NEXT = (
    "UPDATE kafka_offset SET next = ?, topic_id = coalesce(topic_id, ?) "
    "WHERE consumer_group = ? AND topic = ? AND partition = ? AND next = ?"
)


def _insert(table: str, row: type[Any]) -> str:
    columns = ("time", "message_id", *row._fields[1:])
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) ON CONFLICT DO NOTHING"  # nosec B608


INSERT_KEYED = {
    Kind.ALARM_HISTORY: _insert("alarm_history", AlarmTransition),
    Kind.LOGS: _insert("logs", LogEntry),
    Kind.EVENTS: _insert("events", Event),
}


def series_row(series: Series) -> tuple[Any, ...]:
    dimensions = orjson.dumps(dict(series.dimensions), option=orjson.OPT_SORT_KEYS).decode()
    return (series.id, series.tenant, series.region, series.name, dimensions)


def insert_measurements(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """With `INSERT_MEASUREMENT` or `INSERT_STAGED`."""
    at_once = _MEASUREMENTS_AT_ONCE
    several = f"{statement}{f', {_PLACES}' * (at_once - 1)}"
    whole = len(rows) // at_once * at_once
    for start in range(0, whole, at_once):
        connection.execute(several, list(chain.from_iterable(rows[start : start + at_once])))
    connection.executemany(statement, rows[whole:])


def measurement_rows(values: Iterable[Measurement]) -> list[tuple[Any, ...]]:
    return [(series.id, time, value, meta, version) for series, time, value, meta, version in values]


def keyed_rows(values: Sequence[Any], message_ids: Sequence[bytes]) -> list[tuple[Any, ...]]:
    return [(value[0], message_id, *value[1:]) for value, message_id in zip(values, message_ids, strict=True)]
